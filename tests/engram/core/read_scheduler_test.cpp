// The scheduler against a scripted device: priorities, turns, retries, deadlines, cancellation and shutdown.
#include <condition_variable>
#include <deque>
#include <functional>

#include "check.hpp"
#include "read_scheduler.hpp"
#include "table_format.hpp"

using namespace engram;
using std::chrono::milliseconds;

namespace {

// Completes reads only when told to, so that tests decide what is in flight.
class ScriptedDevice final : public PageBackend {
 public:
  int start(const PageBackendSetup&) override { return 0; }

  void queue(ReadOp& op) override {
    const std::lock_guard lock(mutex_);
    out_.push_back(&op);
    changed_.notify_all();
  }

  int exchange(std::span<Completion> out, unsigned, std::chrono::nanoseconds timeout) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return woken_ || !done_.empty(); });
    woken_ = false;
    int count = 0;
    while (!done_.empty() && static_cast<std::size_t>(count) < out.size()) {
      out[static_cast<std::size_t>(count++)] = done_.front();
      done_.pop_front();
    }
    return count;
  }

  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }

  void wait_for_reads(std::size_t count) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(10), [&] { return out_.size() >= count; }));
  }

  std::vector<std::uint64_t> pages_out() {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> pages;
    for (const ReadOp* op : out_) pages.push_back((op->offset - kHeaderBytes) / kPageBytes);
    return pages;
  }

  // Completes the oldest read: all of it, or the result given.
  void complete(std::optional<std::int32_t> result = std::nullopt) {
    const std::lock_guard lock(mutex_);
    CHECK(!out_.empty());
    ReadOp* op = out_.front();
    out_.pop_front();
    done_.push_back({op, result.value_or(static_cast<std::int32_t>(op->bytes - op->done_bytes))});
    changed_.notify_all();
  }

  void complete_all_from_now() {
    const std::lock_guard lock(mutex_);
    for (ReadOp* op : out_) done_.push_back({op, static_cast<std::int32_t>(op->bytes - op->done_bytes)});
    out_.clear();
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ReadOp*> out_;
  std::deque<Completion> done_;
  bool woken_ = false;
};

class CountingJob final : public ReadJob {
 public:
  CountingJob(std::uint32_t first_page, std::uint32_t num_reads, Priority priority,
              std::uint32_t pages_per_read = 1)
      : ReadJob(0, make_plan(first_page, num_reads, pages_per_read), priority) {}

  void deliver(const PlannedRead&, const std::byte*) override {
    const std::lock_guard lock(mutex_);
    CHECK(!finished_);
    ++delivered_;
  }

  void finish(const ReadFailure* failure) override {
    const std::lock_guard lock(mutex_);
    CHECK(!finished_);
    finished_ = true;
    if (failure != nullptr) failure_ = *failure;
    changed_.notify_all();
  }

  int wait() {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(10), [&] { return finished_; }));
    return failure_.error;
  }

  std::uint32_t delivered() {
    const std::lock_guard lock(mutex_);
    return delivered_;
  }

  ReadFailure failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  static ReadPlan make_plan(std::uint32_t first_page, std::uint32_t num_reads, std::uint32_t pages) {
    ReadPlan plan;
    for (std::uint32_t idx = 0; idx < num_reads; ++idx) {
      plan.wanted.push_back({idx, first_page + 10 * idx});
      plan.reads.push_back({first_page + 10 * idx, static_cast<std::uint16_t>(pages), 1, idx, 1});
    }
    return plan;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t delivered_ = 0;
  bool finished_ = false;
  ReadFailure failure_;
};

struct Rig {
  explicit Rig(SchedulerConfig config) {
    auto owned = std::make_unique<ScriptedDevice>();
    device = owned.get();
    scheduler = std::make_unique<ReadScheduler>(std::move(owned), config, counters, nullptr);
    const int file = 0;
    CHECK(scheduler->start(std::span(&file, 1)) == 0);
  }

  std::shared_ptr<CountingJob> submit(std::uint32_t first_page, std::uint32_t num_reads, Priority priority,
                                      std::uint32_t pages_per_read = 1) {
    auto job = std::make_shared<CountingJob>(first_page, num_reads, priority, pages_per_read);
    scheduler->submit(job);
    return job;
  }

  Counters counters;
  ScriptedDevice* device = nullptr;
  std::unique_ptr<ReadScheduler> scheduler;
};

SchedulerConfig config(std::uint32_t depth, std::uint32_t lookahead_depth = 2) {
  return {depth, lookahead_depth, 4, milliseconds(10'000)};
}

void decode_never_queues_behind_lookahead() {
  Rig rig(config(4, 2));
  const auto ahead = rig.submit(0, 50, Priority::kLookahead);
  rig.device->wait_for_reads(2);
  std::this_thread::sleep_for(milliseconds(20));
  CHECK(rig.device->pages_out().size() == 2);  // its depth, not the ring's
  const auto decode = rig.submit(1000, 6, Priority::kDecode);
  rig.device->wait_for_reads(4);
  // From here on only decode reads may start until all of them are back.
  for (int step = 0; step < 8; ++step) {
    rig.device->complete();
    std::this_thread::sleep_for(milliseconds(2));
    std::size_t ahead_out = 0;
    for (const std::uint64_t page : rig.device->pages_out()) ahead_out += page < 1000;
    if (decode->delivered() < 6) CHECK(ahead_out <= 2U - static_cast<unsigned>(std::min(step + 1, 2)));
  }
  CHECK(decode->wait() == 0);
  for (int step = 0; step < 48; ++step) {
    rig.device->wait_for_reads(1);
    rig.device->complete();
  }
  CHECK(ahead->wait() == 0 && ahead->delivered() == 50);
}

void requests_take_turns() {
  Rig rig(config(16));
  const auto large = rig.submit(0, 400, Priority::kDecode);
  rig.device->wait_for_reads(16);
  const auto small = rig.submit(100'000, 5, Priority::kDecode);
  std::this_thread::sleep_for(milliseconds(10));
  for (int step = 0; step < 60; ++step) {
    rig.device->wait_for_reads(1);
    rig.device->complete();
  }
  CHECK(small->wait() == 0);  // far before the 400 reads in front of it
  while (large->delivered() < 400) rig.device->complete_all_from_now();
  CHECK(large->wait() == 0);
}

void short_and_interrupted_reads_go_on() {
  Rig rig(config(4));
  const auto job = rig.submit(5, 1, Priority::kDecode, 4);
  for (const std::int32_t result : {-EINTR, 4096, -EAGAIN, 4096 + 512, 100}) {
    rig.device->wait_for_reads(1);
    rig.device->complete(result);
  }
  rig.device->wait_for_reads(1);
  CHECK(job->delivered() == 0);
  rig.device->complete();
  CHECK(job->wait() == 0 && job->delivered() == 1);
  CHECK(rig.counters.retried_reads == 5);
}

void failures_name_the_place() {
  Rig rig(config(4));
  const auto job = rig.submit(5, 3, Priority::kDecode, 2);
  rig.device->wait_for_reads(3);
  rig.device->complete();
  rig.device->complete(-EIO);
  CHECK(job->wait() == EIO);
  CHECK(job->failure().offset == kHeaderBytes + 15 * kPageBytes);
  rig.device->complete();
  const auto end_of_file = rig.submit(7, 1, Priority::kDecode);
  rig.device->wait_for_reads(1);
  rig.device->complete(0);
  CHECK(end_of_file->wait() == EIO && end_of_file->delivered() == 0);
}

void overdue_reads_fail_and_late_results_are_ignored() {
  SchedulerConfig settings = config(2);
  settings.deadline = milliseconds(60);
  Rig rig(settings);
  const auto hanging = rig.submit(0, 2, Priority::kDecode);
  rig.device->wait_for_reads(2);
  const auto waiting = rig.submit(500, 2, Priority::kDecode);
  CHECK(hanging->wait() == ETIMEDOUT);
  CHECK(waiting->wait() == ETIMEDOUT);  // no slot would ever have come free
  rig.device->complete();
  rig.device->complete();
  const auto next = rig.submit(900, 2, Priority::kDecode);
  rig.device->wait_for_reads(2);
  rig.device->complete_all_from_now();
  CHECK(next->wait() == 0 && hanging->delivered() == 0);
}

void dropped_jobs_end_without_their_reads() {
  Rig rig(config(2));
  const auto running = rig.submit(0, 2, Priority::kDecode);
  rig.device->wait_for_reads(2);
  const auto queued = rig.submit(500, 100, Priority::kDecode);
  queued->drop();
  rig.scheduler->wake();
  CHECK(queued->wait() == ECANCELED && queued->delivered() == 0);
  rig.device->complete_all_from_now();
  CHECK(running->wait() == 0);
}

void stop_waits_for_reads_in_flight() {
  Rig rig(config(4));
  const auto job = rig.submit(0, 20, Priority::kDecode);
  rig.device->wait_for_reads(4);
  std::thread stopper([&] { rig.scheduler->stop(); });
  CHECK(job->wait() == ECANCELED);
  std::this_thread::sleep_for(milliseconds(10));
  CHECK(rig.device->pages_out().size() == 4);
  rig.device->complete_all_from_now();
  stopper.join();
  const auto late = rig.submit(0, 1, Priority::kDecode);
  CHECK(late->wait() == ECANCELED);
  CHECK(rig.counters.reads_in_flight == 0 && rig.counters.queued_requests == 0);
}

}  // namespace

int main() {
  decode_never_queues_behind_lookahead();
  requests_take_turns();
  short_and_interrupted_reads_go_on();
  failures_name_the_place();
  overdue_reads_fail_and_late_results_are_ignored();
  dropped_jobs_end_without_their_reads();
  stop_waits_for_reads_in_flight();
  return 0;
}

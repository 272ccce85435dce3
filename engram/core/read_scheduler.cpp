#include "read_scheduler.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <utility>

#include "table_format.hpp"

namespace engram {
namespace {

using std::chrono::nanoseconds;

// Reads that one request starts before the next request of its class gets a turn: a decode step beside a
// large batch waits for a few reads, not for the batch.
constexpr int kTurn = 16;

// Completions to wait for per system call: an eighth of what is out keeps the device fed and spares CPU time;
// the cap bounds what a new request can wait for (16 reads at 100,000 per second: 0.16 ms).
constexpr unsigned kWaitShare = 8;
constexpr unsigned kMaxWait = 16;

// A read that returned bytes but no whole page is tried this often before it counts as a truncated file.
constexpr std::uint32_t kMaxEmptyReads = 2;

}  // namespace

ReadScheduler::ReadScheduler(std::unique_ptr<PageBackend> backend, SchedulerConfig config, Counters& counters,
                             FaultSeam* seam)
    : pool_(config.queue_depth, config.max_pages_per_read * kPageBytes),
      backend_(std::move(backend)),
      config_(config),
      counters_(counters),
      seam_(seam),
      slots_(config.queue_depth) {
  for (std::uint32_t idx = config.queue_depth; idx-- > 0;) {
    slots_[idx].op.slot = idx;
    slots_[idx].op.buffer = pool_.buffers()[idx];
    free_slots_.push_back(idx);
  }
}

int ReadScheduler::start(std::span<const int> files) {
  std::promise<int> started;
  std::future<int> result = started.get_future();
  thread_ = std::thread([this, files, &started] {
    const int error = backend_->start({files, pool_.buffers(), pool_.buffer_bytes()});
    if (error == 0) {
      const std::lock_guard lock(mutex_);
      closed_error_ = 0;
    }
    started.set_value(error);
    if (error == 0) run();
  });
  const int error = result.get();
  if (error != 0) thread_.join();
  return error;
}

void ReadScheduler::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  backend_->wake();
  thread_.join();
}

void ReadScheduler::submit(std::shared_ptr<ReadJob> job) {
  int error = 0;
  {
    const std::lock_guard lock(mutex_);
    error = closed_error_;
    if (error == 0) {
      arrivals_.push_back(std::move(job));
      has_arrivals_.store(true);
    }
  }
  if (error != 0) {
    const ReadFailure failure{.error = error, .table = job->table()};
    job->finish(&failure);
    return;
  }
  add(counters_.queued_requests);
  // Sequentially consistent with run(): either it sees the arrival before it waits, or we see that it waits.
  if (owner_waits_.load()) backend_->wake();
}

void ReadScheduler::wake() {
  has_dropped_.store(true);
  if (owner_waits_.load()) backend_->wake();
}

void ReadScheduler::run() {
  std::vector<Completion> completions(config_.queue_depth);
  now_ = Clock::now();
  Clock::time_point give_up = Clock::time_point::max();
  for (;;) {
    take_arrivals();
    if (has_dropped_.exchange(false)) discard_dropped();
    if (stopping_.load()) {
      fail_all(ECANCELED);
      if (give_up == Clock::time_point::max()) give_up = Clock::now() + 2 * config_.deadline;
      if (free_slots_.size() == slots_.size() || Clock::now() >= give_up) return;
    }
    start_reads();
    owner_waits_.store(true);
    const bool busy = has_arrivals_.load() || has_dropped_.load();
    const nanoseconds timeout = busy ? nanoseconds(0) : nanoseconds(config_.deadline / 4);
    const int count = backend_->exchange(completions, wait_count(), timeout);
    owner_waits_.store(false);
    now_ = Clock::now();
    if (count < 0) {
      fail_all(-count);
      return;
    }
    for (int idx = 0; idx < count; ++idx)
      complete(slots_[completions[static_cast<std::size_t>(idx)].op->slot],
               completions[static_cast<std::size_t>(idx)].result);
    if (now_ >= next_expiry_check_) expire(now_);
  }
}

void ReadScheduler::take_arrivals() {
  if (!has_arrivals_.load()) return;
  std::vector<std::shared_ptr<ReadJob>> arrived;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrivals_);
    has_arrivals_.store(false);
  }
  now_ = Clock::now();
  for (auto& job : arrived) {
    auto& queue = job->priority() == Priority::kDecode ? decode_ : lookahead_;
    queue.push_back(std::move(job));
  }
}

void ReadScheduler::discard_dropped() {
  for (auto* queue : {&decode_, &lookahead_}) {
    for (const auto& job : *queue)
      if (job->dropped()) fail(*job, {.error = ECANCELED, .table = job->table()});
    const auto gone = std::erase_if(*queue, [](const auto& job) { return job->finished_; });
    counters_.queued_requests.fetch_sub(gone, std::memory_order_relaxed);
  }
}

void ReadScheduler::start_reads() {
  while (!free_slots_.empty() && !decode_.empty()) start_one(decode_);
  // Strictly after decode: a look-ahead read in the device's queue would delay the decode reads behind it.
  while (!free_slots_.empty() && decode_.empty() && decode_out_ == 0 && !lookahead_.empty() &&
         lookahead_out_ < config_.lookahead_depth)
    start_one(lookahead_);
}

// Gives the first request in the queue its turn.
void ReadScheduler::start_one(std::deque<std::shared_ptr<ReadJob>>& queue) {
  const std::shared_ptr<ReadJob> job = std::move(queue.front());
  queue.pop_front();
  if (job->dropped()) fail(*job, {.error = ECANCELED, .table = job->table()});
  const std::vector<PlannedRead>& reads = job->plan().reads;
  const bool lookahead = job->priority() == Priority::kLookahead;
  for (int started = 0; started < kTurn && job->next_read_ < reads.size();) {
    if (job->finished_ || free_slots_.empty()) break;
    if (lookahead && lookahead_out_ >= config_.lookahead_depth) break;
    const PlannedRead& read = reads[job->next_read_++];
    if (!job->wants(read)) continue;
    start_read(job, read);
    ++started;
  }
  if (!job->finished_ && job->next_read_ < reads.size()) {
    // Look-ahead windows are read in the order in which they will be asked for; decode requests take turns.
    if (lookahead) {
      queue.push_front(job);
    } else {
      queue.push_back(job);
    }
    return;
  }
  counters_.queued_requests.fetch_sub(1, std::memory_order_relaxed);
  finish_if_done(*job);
}

void ReadScheduler::start_read(const std::shared_ptr<ReadJob>& job, const PlannedRead& read) {
  Slot& slot = slots_[free_slots_.back()];
  free_slots_.pop_back();
  slot.job = job;
  slot.read = read;
  slot.started = now_;
  slot.empty_reads = 0;
  slot.busy = true;
  slot.lookahead = job->priority() == Priority::kLookahead;
  slot.op.file = job->table();
  slot.op.offset = kHeaderBytes + std::uint64_t{read.first_page} * kPageBytes;
  slot.op.bytes = read.num_pages * kPageBytes;
  slot.op.done_bytes = 0;
  ++(slot.lookahead ? lookahead_out_ : decode_out_);
  ++job->reads_out_;
  add(counters_.reads_in_flight);
  if (slot.lookahead) add(counters_.lookahead_reads_in_flight);
  backend_->queue(slot.op);
}

void ReadScheduler::complete(Slot& slot, std::int32_t result) {
  if (seam_ != nullptr) {
    const std::uint32_t left = slot.op.bytes - slot.op.done_bytes;
    result = seam_->on_result(slot.op.file, slot.op.offset + slot.op.done_bytes, left, result);
    if (result == FaultSeam::kHang) return;
  }
  if (slot.job != nullptr && resume_or_fail(slot, result)) return;
  const std::shared_ptr<ReadJob> job = std::move(slot.job);
  const bool whole = slot.op.done_bytes == slot.op.bytes;
  if (job != nullptr && !job->finished_ && whole) {
    add(counters_.reads);
    add(counters_.read_bytes, slot.op.bytes);
    add(slot.lookahead ? counters_.lookahead_pages : counters_.pages, slot.read.num_wanted_pages);
    counters_.read_latency.record(now_ - slot.started);
    job->deliver(slot.read, slot.op.buffer);
  }
  release(slot);
  if (job == nullptr) return;
  --job->reads_out_;
  finish_if_done(*job);
}

// Books a result; true when the read goes on. A failure fails the whole job.
bool ReadScheduler::resume_or_fail(Slot& slot, std::int32_t result) {
  ReadJob& job = *slot.job;
  if (job.finished_) return false;
  const bool interrupted = result == -EINTR || result == -EAGAIN;
  if (result < 0 && !interrupted) {
    fail(job, failure_of(slot, -result));
    return false;
  }
  const std::uint32_t whole_bytes =
      interrupted ? 0 : static_cast<std::uint32_t>(result) / kPageBytes * kPageBytes;
  slot.op.done_bytes += whole_bytes;
  if (slot.op.done_bytes == slot.op.bytes) return false;
  // Continues at a page border, as O_DIRECT needs aligned offsets. Nothing at all means the end of the file.
  const bool stuck = !interrupted && whole_bytes == 0 && (result == 0 || ++slot.empty_reads > kMaxEmptyReads);
  if (stuck || stopping_.load()) {
    ReadFailure failure = failure_of(slot, stuck ? EIO : ECANCELED);
    failure.got_bytes += static_cast<std::uint32_t>(result > 0 ? result : 0) % kPageBytes;
    fail(job, failure);
    return false;
  }
  add(counters_.retried_reads);
  if (now_ - slot.started > config_.deadline) {
    fail(job, failure_of(slot, ETIMEDOUT));
    add(counters_.timed_out_reads);
    return false;
  }
  backend_->queue(slot.op);
  return true;
}

void ReadScheduler::release(Slot& slot) {
  slot.busy = false;
  counters_.reads_in_flight.fetch_sub(1, std::memory_order_relaxed);
  if (slot.lookahead) {
    --lookahead_out_;
    counters_.lookahead_reads_in_flight.fetch_sub(1, std::memory_order_relaxed);
  } else {
    --decode_out_;
  }
  free_slots_.push_back(slot.op.slot);
}

void ReadScheduler::fail(ReadJob& job, const ReadFailure& failure) {
  if (job.finished_) return;
  job.finished_ = true;
  if (failure.error != ECANCELED) add(counters_.failed_reads);
  job.finish(&failure);
}

void ReadScheduler::fail_all(int error) {
  {
    const std::lock_guard lock(mutex_);
    closed_error_ = error;
  }
  take_arrivals();
  for (auto* queue : {&decode_, &lookahead_}) {
    for (const auto& job : *queue) fail(*job, {.error = error, .table = job->table()});
    counters_.queued_requests.fetch_sub(queue->size(), std::memory_order_relaxed);
    queue->clear();
  }
  for (Slot& slot : slots_)
    if (slot.job != nullptr) fail(*slot.job, failure_of(slot, error));
}

void ReadScheduler::finish_if_done(ReadJob& job) {
  if (job.finished_ || job.reads_out_ > 0 || job.next_read_ < job.plan().reads.size()) return;
  job.finished_ = true;
  job.finish(nullptr);
}

// Fails requests whose reads are overdue. Their slots stay taken until the device gives the reads back.
void ReadScheduler::expire(Clock::time_point now) {
  next_expiry_check_ = now + config_.deadline / 4;
  given_up_ = 0;
  for (Slot& slot : slots_) {
    if (slot.busy && slot.job != nullptr && now - slot.started > config_.deadline) {
      if (!slot.job->finished_) add(counters_.timed_out_reads);
      fail(*slot.job, failure_of(slot, ETIMEDOUT));
      --slot.job->reads_out_;
      slot.job = nullptr;
    }
    given_up_ += slot.busy && slot.job == nullptr;
  }
  if (given_up_ < slots_.size()) return;
  // The whole device hangs: requests that wait for a slot would wait forever.
  for (auto* queue : {&decode_, &lookahead_}) {
    for (const auto& job : *queue) fail(*job, {.error = ETIMEDOUT, .table = job->table()});
    counters_.queued_requests.fetch_sub(queue->size(), std::memory_order_relaxed);
    queue->clear();
  }
}

unsigned ReadScheduler::wait_count() const {
  const std::uint32_t out = decode_out_ + lookahead_out_ - given_up_;
  return std::clamp(out / kWaitShare, 1U, kMaxWait);
}

ReadFailure ReadScheduler::failure_of(const Slot& slot, int error) const {
  return {.error = error,
          .table = slot.op.file,
          .offset = slot.op.offset + slot.op.done_bytes,
          .wanted_bytes = slot.op.bytes,
          .got_bytes = slot.op.done_bytes};
}

}  // namespace engram

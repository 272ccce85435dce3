// One thread that starts and reaps all reads: priorities, depth, retries, short reads and deadlines.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "buffer_pool.hpp"
#include "counters.hpp"
#include "fault_seam.hpp"
#include "page_backend.hpp"
#include "read_job.hpp"

namespace engram {

struct SchedulerConfig {
  std::uint32_t queue_depth = 256;
  std::uint32_t lookahead_depth = 32;  // look-ahead reads in flight: what a decode read may find ahead of it
  std::uint32_t max_pages_per_read = 4;
  std::chrono::nanoseconds deadline = std::chrono::seconds(5);  // of one read, from its start
};

class ReadScheduler {
 public:
  ReadScheduler(std::unique_ptr<PageBackend> backend, SchedulerConfig config, Counters& counters,
                FaultSeam* seam);
  ~ReadScheduler() { stop(); }

  // Starts the owner thread on these files. 0 or -errno.
  int start(std::span<const int> files);

  // Fails all jobs with ECANCELED and ends the thread once the reads in flight have come back (a hung device
  // is given up after two deadlines).
  void stop();

  // Never blocks on I/O. A stopped or broken scheduler finishes the job at once, with a failure.
  void submit(std::shared_ptr<ReadJob> job);

  // Makes the owner thread look at dropped jobs soon.
  void wake();

 private:
  struct Slot {
    ReadOp op{};
    std::shared_ptr<ReadJob> job;  // null: free, or given up (timed out) while the read is still out
    PlannedRead read{};
    Clock::time_point started;
    std::uint32_t empty_reads = 0;
    bool busy = false;
    bool lookahead = false;
  };

  void run();
  void take_arrivals();
  void discard_dropped();
  void start_reads();
  void start_one(std::deque<std::shared_ptr<ReadJob>>& queue);
  void start_read(const std::shared_ptr<ReadJob>& job, const PlannedRead& read);
  void complete(Slot& slot, std::int32_t result);
  bool resume_or_fail(Slot& slot, std::int32_t result);
  void release(Slot& slot);
  void fail(ReadJob& job, const ReadFailure& failure);
  void fail_all(int error);
  void finish_if_done(ReadJob& job);
  void expire(Clock::time_point now);
  unsigned wait_count() const;
  ReadFailure failure_of(const Slot& slot, int error) const;

  BufferPool pool_;  // outlives the backend, whose threads may be reading into it
  std::unique_ptr<PageBackend> backend_;
  const SchedulerConfig config_;
  Counters& counters_;
  FaultSeam* const seam_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::deque<std::shared_ptr<ReadJob>> decode_;
  std::deque<std::shared_ptr<ReadJob>> lookahead_;
  std::uint32_t decode_out_ = 0;
  std::uint32_t lookahead_out_ = 0;
  std::uint32_t given_up_ = 0;
  Clock::time_point now_;
  Clock::time_point next_expiry_check_;

  std::mutex mutex_;  // guards arrivals_, closed_error_
  std::vector<std::shared_ptr<ReadJob>> arrivals_;
  int closed_error_ = ECANCELED;  // 0 while running
  std::atomic<bool> has_arrivals_{false};
  std::atomic<bool> has_dropped_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> owner_waits_{false};
  std::thread thread_;
};

}  // namespace engram

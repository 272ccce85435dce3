// A set of planned reads and what becomes of their pages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "read_plan.hpp"

namespace engram {

enum class Priority : std::uint8_t { kDecode = 0, kLookahead = 1 };

struct ReadFailure {
  int error = 0;  // errno; ECANCELED when the job was cancelled or the store closed
  std::uint32_t table = 0;
  std::uint64_t offset = 0;
  std::uint32_t wanted_bytes = 0;
  std::uint32_t got_bytes = 0;
};

class ReadJob {
 public:
  ReadJob(std::uint32_t table, ReadPlan plan, Priority priority)
      : table_(table), priority_(priority), plan_(std::move(plan)) {}
  virtual ~ReadJob() = default;
  ReadJob(const ReadJob&) = delete;
  ReadJob& operator=(const ReadJob&) = delete;

  // Owner thread: whether this read is still worth starting.
  virtual bool wants(const PlannedRead&) { return true; }
  // Owner thread: the pages of one read, valid during the call.
  virtual void deliver(const PlannedRead& read, const std::byte* pages) = 0;
  // Exactly once: after the last deliver(), or instead of the rest of them (failure set).
  virtual void finish(const ReadFailure* failure) = 0;

  // Any thread. The scheduler drops the rest of the job when it next looks; see ReadScheduler::wake().
  void drop() { dropped_.store(true, std::memory_order_release); }
  bool dropped() const { return dropped_.load(std::memory_order_acquire); }

  std::uint32_t table() const { return table_; }
  Priority priority() const { return priority_; }
  const ReadPlan& plan() const { return plan_; }

 private:
  friend class ReadScheduler;

  const std::uint32_t table_;
  const Priority priority_;
  const ReadPlan plan_;
  std::atomic<bool> dropped_{false};
  // The scheduler's: owner thread only.
  std::uint32_t next_read_ = 0;
  std::uint32_t reads_out_ = 0;
  bool finished_ = false;
};

}  // namespace engram

// One submitted request: rows on their way into the caller's memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "counters.hpp"
#include "page_backend.hpp"
#include "read_job.hpp"
#include "row_cache.hpp"
#include "row_shape.hpp"

namespace engram {

// What a reader of a table's pages has to know about it.
struct TableView {
  std::uint32_t table = 0;
  RowKey key_base = 0;
  std::uint32_t rows_per_page = 0;
  RowShape shape;
};

enum class TicketState : std::uint8_t { kPending, kDone, kFailed };

class Ticket final : public ReadJob {
 public:
  // `out` must stay valid until wait() reports the end, or until cancel() or the destructor returns.
  Ticket(const TableView& view, ReadPlan plan, Priority priority, RowPlanes out, RowCache& cache,
         Counters& counters, Clock::time_point submitted);

  // Waits at most so long; kPending when the time is over. Any thread, any number of times.
  TicketState wait(std::chrono::nanoseconds timeout);
  TicketState state();
  // Valid once state() is kFailed.
  ReadFailure failure();

  // Nothing is written to `out` after this returns; a pending ticket fails with ECANCELED.
  void cancel();

  void deliver(const PlannedRead& read, const std::byte* pages) override;
  void finish(const ReadFailure* failure) override;

 private:
  void settle(const ReadFailure* failure);
  TicketState state_locked() const;

  const TableView view_;
  const RowPlanes out_;
  RowCache& cache_;
  Counters& counters_;
  const Clock::time_point submitted_;
  std::mutex mutex_;
  std::condition_variable settled_cv_;
  bool settled_ = false;
  std::optional<ReadFailure> failure_;
};

}  // namespace engram

#include "ticket.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "table_format.hpp"

namespace engram {

Ticket::Ticket(const TableView& view, ReadPlan plan, Priority priority, RowPlanes out, RowCache& cache,
               Counters& counters, Clock::time_point submitted)
    : ReadJob(view.table, std::move(plan), priority),
      view_(view),
      out_(out),
      cache_(cache),
      counters_(counters),
      submitted_(submitted) {
  if (this->plan().reads.empty()) settle(nullptr);
}

TicketState Ticket::wait(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  // An absolute time far away overflows inside the library; a year stands for "no limit".
  constexpr std::chrono::nanoseconds kNoLimit = std::chrono::hours(24 * 365);
  settled_cv_.wait_until(lock, Clock::now() + std::min(timeout, kNoLimit), [&] { return settled_; });
  return state_locked();
}

TicketState Ticket::state() {
  const std::lock_guard lock(mutex_);
  return state_locked();
}

TicketState Ticket::state_locked() const {
  if (!settled_) return TicketState::kPending;
  return failure_ ? TicketState::kFailed : TicketState::kDone;
}

ReadFailure Ticket::failure() {
  const std::lock_guard lock(mutex_);
  return failure_.value_or(ReadFailure{});
}

void Ticket::cancel() {
  drop();
  const ReadFailure cancelled{.error = ECANCELED, .table = table()};
  settle(&cancelled);
}

void Ticket::deliver(const PlannedRead& read, const std::byte* pages) {
  const auto row_at = [&](std::uint32_t row) {
    const std::uint32_t page = row / view_.rows_per_page;
    const std::size_t in_page = row - page * view_.rows_per_page;
    return pages + std::size_t{page - read.first_page} * kPageBytes + in_page * view_.shape.row_bytes();
  };
  const WantedRow* first = &plan().wanted[read.first_wanted];
  const WantedRow* end = first + read.num_wanted;
  {
    // Held while writing to the caller's memory, so that cancel() can promise that no write follows it.
    const std::lock_guard lock(mutex_);
    if (settled_) return;
    for (const WantedRow* wanted = first; wanted != end; ++wanted)
      copy_row(view_.shape, row_at(wanted->row), out_, wanted->out_idx);
  }
  while (first != end) {
    const WantedRow* next =
        std::find_if(first, end, [&](const WantedRow& wanted) { return wanted.row != first->row; });
    cache_.admit(view_.key_base + first->row, row_at(first->row), static_cast<std::uint32_t>(next - first));
    first = next;
  }
}

void Ticket::finish(const ReadFailure* failure) { settle(failure); }

void Ticket::settle(const ReadFailure* failure) {
  const std::lock_guard lock(mutex_);
  if (settled_) return;
  settled_ = true;
  if (failure == nullptr) {
    if (priority() == Priority::kDecode) counters_.request_latency.record(Clock::now() - submitted_);
  } else {
    failure_ = *failure;
    add(failure->error == ECANCELED ? counters_.cancelled_requests : counters_.failed_requests);
  }
  settled_cv_.notify_all();
}

}  // namespace engram

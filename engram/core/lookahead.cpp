#include "lookahead.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "table_format.hpp"

namespace engram {
namespace {

// Ids per window: large enough for useful de-duplication and sorting, small enough that planning one takes a
// millisecond and that a dropped request leaves little behind.
constexpr std::uint64_t kWindowIds = 8192;

// Windows with the scheduler at a time: one being read, one ready. More would only age in its queue.
constexpr std::uint32_t kMaxWindowsOut = 2;

}  // namespace

class Lookahead::WindowJob final : public ReadJob {
 public:
  WindowJob(Lookahead& owner, const TableView& view, ReadPlan plan, WindowId window)
      : ReadJob(view.table, std::move(plan), Priority::kLookahead),
        owner_(owner),
        view_(view),
        window_(window),
        rows_left_(static_cast<std::uint32_t>(this->plan().unique_rows)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }

  bool wants(const PlannedRead& read) override {
    bool wanted = false;
    for_unique(read, [&](std::uint32_t row) {
      wanted = wanted || (!dropped() && !owner_.cache_.contains(view_.key_base + row));
    });
    if (!wanted) for_unique(read, [&](std::uint32_t) { settle(1); });
    return wanted;
  }

  void deliver(const PlannedRead& read, const std::byte* pages) override {
    for_unique(read, [&](std::uint32_t row) {
      const std::uint32_t page = row / view_.rows_per_page;
      const std::size_t in_page = row - page * view_.rows_per_page;
      const std::byte* bytes =
          pages + std::size_t{page - read.first_page} * kPageBytes + in_page * view_.shape.row_bytes();
      if (owner_.cache_.stage(view_.key_base + row, bytes, window_)) {
        --rows_left_;
        engram::add(owner_.counters_.lookahead_staged_rows);
      } else {
        settle(1);
      }
    });
  }

  void finish(const ReadFailure*) override {
    // A failed read ahead is not an error of any request: the rows are read again, and reported, on demand.
    settle(rows_left_);
    done_.store(true, std::memory_order_release);
    owner_.windows_out_.fetch_sub(1);
    owner_.notify();
  }

 private:
  template <typename Visit>
  void for_unique(const PlannedRead& read, Visit visit) {
    const WantedRow* first = &plan().wanted[read.first_wanted];
    for (const WantedRow* wanted = first; wanted != first + read.num_wanted; ++wanted)
      if (wanted == first || wanted->row != wanted[-1].row) visit(wanted->row);
  }

  void settle(std::uint32_t rows) {
    rows_left_ -= rows;
    owner_.cache_.ledger().settle(window_, rows);
    engram::add(owner_.counters_.lookahead_unused_rows, rows);
  }

  Lookahead& owner_;
  const TableView view_;
  const WindowId window_;
  std::uint32_t rows_left_;  // neither staged nor settled
  std::atomic<bool> done_{false};
};

Lookahead::Lookahead(std::vector<LookaheadTable> tables, RowCache& cache, ReadScheduler& scheduler,
                     Counters& counters, std::uint64_t budget_rows, MergeLimits merge)
    : tables_(std::move(tables)),
      cache_(cache),
      scheduler_(scheduler),
      counters_(counters),
      budget_rows_(budget_rows),
      window_ids_(std::clamp<std::uint64_t>(budget_rows / 4, 1, kWindowIds)),
      merge_(merge) {}

void Lookahead::start() {
  planner_ = std::thread([this] { plan_forever(); });
}

void Lookahead::stop() {
  if (!planner_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  planner_.join();
}

void Lookahead::add(RequestKey request, std::uint32_t table, std::span<const std::int64_t> ids) {
  {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = requests_.try_emplace(request);
    if (is_new) entry->second.order = next_order_++;
    Stream& stream = entry->second.streams[table];
    close_windows(stream, std::numeric_limits<std::uint64_t>::max());
    stream.ids = ids;
    stream.next = 0;
  }
  wake_.notify_all();
}

void Lookahead::advance(RequestKey request, std::uint32_t table, std::uint64_t position) {
  {
    const std::lock_guard lock(mutex_);
    const auto entry = requests_.find(request);
    if (entry == requests_.end()) return;
    const auto stream = entry->second.streams.find(table);
    if (stream == entry->second.streams.end()) return;
    stream->second.next =
        std::max<std::uint64_t>(stream->second.next, std::min(position, stream->second.ids.size()));
    close_windows(stream->second, position);
  }
  wake_.notify_all();
}

void Lookahead::cancel(RequestKey request) {
  {
    const std::lock_guard lock(mutex_);
    const auto entry = requests_.find(request);
    if (entry == requests_.end()) return;
    for (auto& [table, stream] : entry->second.streams)
      close_windows(stream, std::numeric_limits<std::uint64_t>::max());
    requests_.erase(entry);
  }
  scheduler_.wake();
  wake_.notify_all();
}

void Lookahead::notify() {
  if (!planner_waits_.load()) return;
  // Taken so that the planner is either before its check or already waiting.
  { const std::lock_guard lock(mutex_); }
  wake_.notify_all();
}

void Lookahead::close_windows(Stream& stream, std::uint64_t before) {
  while (!stream.windows.empty() && stream.windows.front().end <= before) {
    Window window = std::move(stream.windows.front());
    stream.windows.pop_front();
    window.job->drop();
    cache_.ledger().close(window.id);
    sweep_needed_ = true;
    closed_.push_back(std::move(window));
  }
}

void Lookahead::plan_forever() {
  Slice slice;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (std::exchange(sweep_needed_, false)) {
      lock.unlock();
      sweep();
      lock.lock();
      continue;
    }
    retire_windows();
    planner_waits_.store(true);
    if (!cut_slice(slice)) {
      wake_.wait(lock);
      continue;
    }
    planner_waits_.store(false);
    lock.unlock();
    read_slice(slice);
    lock.lock();
  }
}

void Lookahead::sweep() {
  scheduler_.wake();
  const std::uint64_t before = cache_.ledger().total_rows();
  cache_.drop_closed();
  const std::uint64_t after = cache_.ledger().total_rows();
  // Submits that consume at the same time blur this count a little; it only feeds a metric.
  engram::add(counters_.lookahead_unused_rows, before > after ? before - after : 0);
}

void Lookahead::retire_windows() {
  const auto over = [&](const Window& window) {
    if (cache_.ledger().rows(window.id) > 0 || !window.job->done()) return false;
    cache_.ledger().retire(window.id);
    return true;
  };
  std::erase_if(closed_, over);
  for (auto& [key, request] : requests_)
    for (auto& [table, stream] : request.streams) std::erase_if(stream.windows, over);
}

std::uint64_t Lookahead::rows_held(const Request& request) const {
  std::uint64_t rows = 0;
  for (const auto& [table, stream] : request.streams)
    for (const Window& window : stream.windows) rows += cache_.ledger().rows(window.id);
  return rows;
}

// First come, first served, but no request holds more than its share of the budget while others wait. Within a
// request the table that is least far along: layers are asked for in step.
std::pair<Lookahead::RequestKey, Lookahead::Stream*> Lookahead::choose_stream(std::uint32_t& table) {
  const std::uint64_t share = std::max(budget_rows_ / std::max<std::size_t>(requests_.size(), 1), window_ids_);
  RequestKey chosen_key = 0;
  Stream* chosen = nullptr;
  std::uint64_t chosen_order = std::numeric_limits<std::uint64_t>::max();
  for (auto& [key, request] : requests_) {
    if (request.order >= chosen_order) continue;
    Stream* behind = nullptr;
    std::uint32_t behind_table = 0;
    for (auto& [idx, stream] : request.streams) {
      if (stream.next == stream.ids.size()) continue;
      if (behind != nullptr && behind->next <= stream.next) continue;
      behind = &stream;
      behind_table = idx;
    }
    if (behind == nullptr || rows_held(request) + window_ids_ > share) continue;
    chosen_key = key;
    chosen = behind;
    chosen_order = request.order;
    table = behind_table;
  }
  return {chosen_key, chosen};
}

// Copies the next window's ids out, so that planning needs no lock.
bool Lookahead::cut_slice(Slice& slice) {
  if (windows_out_.load() >= kMaxWindowsOut) return false;
  if (cache_.ledger().total_rows() + window_ids_ > budget_rows_) return false;
  const auto [key, stream] = choose_stream(slice.table);
  if (stream == nullptr) return false;
  const std::uint64_t count = std::min<std::uint64_t>(window_ids_, stream->ids.size() - stream->next);
  const auto ids = stream->ids.subspan(stream->next, count);
  slice.ids.assign(ids.begin(), ids.end());
  stream->next += count;
  slice.request = key;
  slice.end = stream->next;
  return true;
}

void Lookahead::read_slice(const Slice& slice) {
  const LookaheadTable& table = tables_[slice.table];
  std::vector<WantedRow> wanted;
  for (const std::int64_t id : slice.ids) {
    const std::uint32_t row = table.columns->local_row(id);
    // Checked by add()'s caller; an id changed since then is simply not read ahead.
    if (row != kNoRow && !cache_.contains(table.view.key_base + row)) wanted.push_back({0, row});
  }
  if (wanted.empty()) return;
  ReadPlan plan = make_read_plan(std::move(wanted), table.view.rows_per_page, merge_);
  const std::uint64_t rows = plan.unique_rows;
  const auto window = cache_.ledger().open(static_cast<std::uint32_t>(rows));
  if (!window) return;  // thousands of windows with a few rows each: those rows are read on demand
  engram::add(counters_.lookahead_rows, rows);
  auto job = std::make_shared<WindowJob>(*this, table.view, std::move(plan), *window);
  windows_out_.fetch_add(1);
  {
    const std::lock_guard lock(mutex_);
    const auto request = requests_.find(slice.request);
    const bool wanted_still = request != requests_.end() && request->second.streams.contains(slice.table);
    Window entry{*window, slice.end, job};
    if (wanted_still) {
      request->second.streams[slice.table].windows.push_back(std::move(entry));
    } else {
      job->drop();
      cache_.ledger().close(*window);
      closed_.push_back(std::move(entry));
    }
  }
  scheduler_.submit(std::move(job));
}

}  // namespace engram

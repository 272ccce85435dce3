// Reads the rows of admitted prompts before they are asked for, under a budget of rows.
//
// A request has one stream of row ids per table, in the order in which its chunks will ask. A planner thread
// cuts the streams into windows and hands them to the scheduler at look-ahead priority; the rows are staged in
// the row cache until a submit takes them, or until advance() or cancel() says that nobody will.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "column_map.hpp"
#include "counters.hpp"
#include "read_scheduler.hpp"
#include "row_cache.hpp"
#include "ticket.hpp"

namespace engram {

struct LookaheadTable {
  TableView view;
  const ColumnMap* columns = nullptr;
};

class Lookahead {
 public:
  using RequestKey = std::uint64_t;

  Lookahead(std::vector<LookaheadTable> tables, RowCache& cache, ReadScheduler& scheduler, Counters& counters,
            std::uint64_t budget_rows, MergeLimits merge);
  ~Lookahead() { stop(); }

  void start();
  void stop();

  // The ids are not copied: they must stay valid and unchanged until cancel(request) or stop() returns.
  // They replace an earlier stream of the same request and table. The caller has checked them.
  void add(RequestKey request, std::uint32_t table, std::span<const std::int64_t> ids);

  // The request will not ask for the ids before `position` any more (computed, or found in a prefix cache).
  void advance(RequestKey request, std::uint32_t table, std::uint64_t position);

  // The request ended or was aborted. Unknown requests are fine.
  void cancel(RequestKey request);

  // Rows were consumed: there may be room for the next window.
  void notify();

 private:
  class WindowJob;

  struct Window {
    WindowId id;
    std::uint64_t end;  // position after its last id
    std::shared_ptr<WindowJob> job;
  };

  struct Stream {
    std::span<const std::int64_t> ids;
    std::uint64_t next = 0;
    std::deque<Window> windows;
  };

  struct Request {
    std::uint64_t order = 0;  // of admission
    std::map<std::uint32_t, Stream> streams;
  };

  struct Slice {
    RequestKey request = 0;
    std::uint32_t table = 0;
    std::uint64_t end = 0;
    std::vector<std::int64_t> ids;
  };

  void plan_forever();
  bool cut_slice(Slice& slice);
  std::pair<RequestKey, Stream*> choose_stream(std::uint32_t& table);
  void read_slice(const Slice& slice);
  std::uint64_t rows_held(const Request& request) const;
  void close_windows(Stream& stream, std::uint64_t before);
  void retire_windows();
  void sweep();

  const std::vector<LookaheadTable> tables_;
  RowCache& cache_;
  ReadScheduler& scheduler_;
  Counters& counters_;
  const std::uint64_t budget_rows_;
  const std::uint64_t window_ids_;
  const MergeLimits merge_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<RequestKey, Request> requests_;
  std::vector<Window> closed_;  // to retire once their last read is back
  std::uint64_t next_order_ = 0;
  bool sweep_needed_ = false;
  bool stopping_ = false;
  std::atomic<std::uint32_t> windows_out_{0};  // handed to the scheduler, not finished
  std::atomic<bool> planner_waits_{false};
  std::thread planner_;
};

}  // namespace engram

// The row store: packed files, cache, look-ahead and scheduler behind submit() and read_now().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "column_map.hpp"
#include "counters.hpp"
#include "fault_seam.hpp"
#include "file_handle.hpp"
#include "lookahead.hpp"
#include "ram_table.hpp"
#include "read_scheduler.hpp"
#include "row_cache.hpp"
#include "table_format.hpp"
#include "ticket.hpp"

namespace engram {

enum class BackendKind : std::uint8_t { kUring, kThreads, kRam };

struct StoreOptions {
  BackendKind backend = BackendKind::kUring;
  std::uint64_t cache_bytes = 0;
  std::uint64_t lookahead_bytes = 0;
  std::uint32_t num_threads = 32;  // of the thread-pool backend
  bool allow_buffered = false;
  SchedulerConfig scheduler;
  std::uint32_t max_gap_pages = 0;
};

// What is wrong with a submit: nothing, or the index of the first id that no owned column holds.
struct SubmitFault {
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t bad_idx = kNone;
};

class RowStore {
 public:
  // Plans of larger requests would outgrow the store's memory bound; callers split them.
  static constexpr std::size_t kMaxIds = std::size_t{1} << 20;

  // Null with `fault` filled in when a file or the backend cannot be used. The seam, if any, must outlive the
  // store.
  static std::unique_ptr<RowStore> open(const std::vector<std::string>& paths, const StoreOptions& options,
                                        FaultSeam* seam, OpenFault& fault);
  ~RowStore() { close(); }

  // Cancels what is under way and waits for reads in flight. Later submits fail with ECANCELED.
  void close();

  std::size_t num_tables() const { return tables_.size(); }
  const PackedHeader& header(std::uint32_t table) const { return tables_[table]->header; }
  const std::string& path(std::uint32_t table) const { return tables_[table]->path; }
  RowShape shape() const { return shape_; }

  // Starts reading `ids` (at most kMaxIds) into out. Rows in memory are copied before this returns. Null with
  // fault.bad_idx set when an id is not of this file; out may then be partly written.
  std::shared_ptr<Ticket> submit(std::uint32_t table, std::span<const std::int64_t> ids, RowPlanes out,
                                 Priority priority, SubmitFault& fault);

  // Nothing is written to the ticket's memory after this returns.
  void cancel(Ticket& ticket);

  // Blocks until the rows are in out. 0, -ERANGE for a foreign id, or -errno of a failed read.
  int read_now(std::uint32_t table, std::span<const std::int64_t> ids, RowPlanes out);

  // The index of the first id that is not of this file, or SubmitFault::kNone.
  std::size_t find_foreign_id(std::uint32_t table, std::span<const std::int64_t> ids) const;

  // Null without look-ahead bytes.
  Lookahead* lookahead() { return lookahead_.get(); }

  const Counters& counters() const { return counters_; }
  RowCache& cache() { return *cache_; }

 private:
  struct Table {
    std::string path;
    FileHandle file;
    PackedHeader header;
    std::unique_ptr<ColumnMap> columns;
    std::unique_ptr<RamTable> ram;
    TableView view;
  };

  RowStore() = default;
  bool open_table(const std::string& path, const StoreOptions& options, OpenFault& fault);
  bool start(const StoreOptions& options, FaultSeam* seam, OpenFault& fault);
  bool copy_present(const Table& table, std::span<const std::int64_t> ids, RowPlanes out,
                    std::vector<WantedRow>& missed, SubmitFault& fault);
  bool copy_from_ram(const Table& table, std::span<const std::int64_t> ids, RowPlanes out, SubmitFault& fault);
  bool copy_hits(const Table& table, std::span<const std::int64_t> ids, RowPlanes out,
                 std::vector<WantedRow>& missed, SubmitFault& fault);
  std::shared_ptr<Ticket> read_missed(const Table& table, std::vector<WantedRow> missed, Priority priority,
                                      RowPlanes out, Clock::time_point submitted);

  Counters counters_;
  std::vector<std::unique_ptr<Table>> tables_;
  RowShape shape_;
  MergeLimits merge_;
  std::unique_ptr<RowCache> cache_;
  std::unique_ptr<ReadScheduler> scheduler_;
  std::unique_ptr<Lookahead> lookahead_;
};

}  // namespace engram

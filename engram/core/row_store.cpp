#include "row_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "thread_backend.hpp"
#include "uring_backend.hpp"

namespace engram {
namespace {

// Ids between asking for a row in memory and copying it, of the RAM backend.
constexpr std::size_t kAhead = 32;

bool fail(OpenFault& fault, const std::string& path, int error, std::string message = {}) {
  fault = {path, std::move(message), error, false};
  return false;
}

// Read with O_DIRECT, so the memory must be aligned; read through the very descriptor that serves rows.
bool read_header(int fd, const std::string& path, PackedHeader& header, OpenFault& fault) {
  const std::unique_ptr<void, decltype(&std::free)> raw(std::aligned_alloc(kPageBytes, kHeaderBytes),
                                                        &std::free);
  if (raw == nullptr) return fail(fault, path, ENOMEM);
  ssize_t got = -1;
  do {
    got = ::pread(fd, raw.get(), kHeaderBytes, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return fail(fault, path, errno);
  if (got != static_cast<ssize_t>(kHeaderBytes))
    return fail(fault, path, 0, "packed table must be at least 4096 bytes long, got " + std::to_string(got));
  std::memcpy(&header, raw.get(), sizeof(header));
  if (auto text = find_header_fault(header)) return fail(fault, path, 0, *text);
  struct stat info {};
  if (fstat(fd, &info) != 0) return fail(fault, path, errno);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size != header.file_bytes)
    return fail(
        fault, path, 0,
        "file size must be " + std::to_string(header.file_bytes) + " bytes, got " + std::to_string(size));
  return true;
}

std::unique_ptr<PageBackend> make_backend(const StoreOptions& options) {
  if (options.backend == BackendKind::kThreads) return std::make_unique<ThreadBackend>(options.num_threads);
  return std::make_unique<UringBackend>(options.scheduler.queue_depth);
}

}  // namespace

std::unique_ptr<RowStore> RowStore::open(const std::vector<std::string>& paths, const StoreOptions& options,
                                         FaultSeam* seam, OpenFault& fault) {
  std::unique_ptr<RowStore> store(new RowStore);
  for (const std::string& path : paths)
    if (!store->open_table(path, options, fault)) return nullptr;
  if (!store->start(options, seam, fault)) return nullptr;
  return store;
}

bool RowStore::open_table(const std::string& path, const StoreOptions& options, OpenFault& fault) {
  auto table = std::make_unique<Table>();
  table->path = path;
  const bool buffered = options.allow_buffered || options.backend == BackendKind::kRam;
  if (open_direct(path, buffered, table->file, fault) != 0) return false;
  if (!read_header(table->file.fd(), path, table->header, fault)) return false;
  const PackedHeader& header = table->header;
  const RowShape shape{header.weight_bytes, header.scale_bytes};
  if (!tables_.empty() && shape != shape_) return fail(fault, path, 0, "all tables must have rows of one size");
  shape_ = shape;
  std::uint64_t key_base = 0;
  for (const auto& other : tables_) key_base += other->header.num_rows;
  // Keys of the row cache are 32 bits wide; the two real tables have 768 M rows.
  if (key_base + header.num_rows >= kNoRow)
    return fail(fault, path, 0, "tables must have fewer than 2^32 rows in all");
  table->columns = std::make_unique<ColumnMap>(std::span(header.columns, header.num_columns));
  table->view = {static_cast<std::uint32_t>(tables_.size()), static_cast<RowKey>(key_base),
                 header.rows_per_page, shape};
  if (options.backend == BackendKind::kRam) {
    const int flags = fcntl(table->file.fd(), F_GETFL);
    if (flags < 0 || fcntl(table->file.fd(), F_SETFL, flags & ~O_DIRECT) != 0) return fail(fault, path, errno);
    int error = 0;
    table->ram = RamTable::load(table->file.fd(), header.file_bytes, error);
    if (table->ram == nullptr) return fail(fault, path, error);
  }
  tables_.push_back(std::move(table));
  return true;
}

bool RowStore::start(const StoreOptions& options, FaultSeam* seam, OpenFault& fault) {
  merge_ = {options.scheduler.max_pages_per_read, options.max_gap_pages};
  try {
    cache_ = std::make_unique<RowCache>(shape_, options.cache_bytes + options.lookahead_bytes);
    if (options.backend == BackendKind::kRam) return true;
    scheduler_ = std::make_unique<ReadScheduler>(make_backend(options), options.scheduler, counters_, seam);
  } catch (const std::bad_alloc&) {
    return fail(fault, "", ENOMEM, "memory for the row cache and the read buffers");
  }
  std::vector<int> files;
  for (const auto& table : tables_) files.push_back(table->file.fd());
  if (const int error = scheduler_->start(files)) {
    scheduler_.reset();
    return fail(fault, "", -error, "start of the read backend");
  }
  const std::uint64_t total_bytes = options.cache_bytes + options.lookahead_bytes;
  if (options.lookahead_bytes == 0) return true;
  const auto budget_rows = static_cast<std::uint64_t>(static_cast<double>(cache_->num_slots()) *
                                                      static_cast<double>(options.lookahead_bytes) /
                                                      static_cast<double>(total_bytes));
  std::vector<LookaheadTable> views;
  for (const auto& table : tables_) views.push_back({table->view, table->columns.get()});
  lookahead_ =
      std::make_unique<Lookahead>(std::move(views), *cache_, *scheduler_, counters_, budget_rows, merge_);
  lookahead_->start();
  return true;
}

void RowStore::close() {
  if (lookahead_ != nullptr) lookahead_->stop();
  if (scheduler_ != nullptr) scheduler_->stop();
}

std::shared_ptr<Ticket> RowStore::submit(std::uint32_t table_idx, std::span<const std::int64_t> ids,
                                         RowPlanes out, Priority priority, SubmitFault& fault) {
  const Clock::time_point now = Clock::now();
  const Table& table = *tables_[table_idx];
  std::vector<WantedRow> missed;
  if (!copy_present(table, ids, out, missed, fault)) return nullptr;
  return read_missed(table, std::move(missed), priority, out, now);
}

// Copies what is in memory and counts the request; the others go to `missed`. False at a foreign id.
bool RowStore::copy_present(const Table& table, std::span<const std::int64_t> ids, RowPlanes out,
                            std::vector<WantedRow>& missed, SubmitFault& fault) {
  const std::uint64_t staged_before = cache_->ledger().total_rows();
  const bool ours = table.ram != nullptr ? copy_from_ram(table, ids, out, fault)
                                         : copy_hits(table, ids, out, missed, fault);
  if (!ours) return false;
  add(counters_.requests);
  add(counters_.rows, ids.size());
  add(counters_.hit_rows, ids.size() - missed.size());
  if (lookahead_ != nullptr && cache_->ledger().total_rows() < staged_before) lookahead_->notify();
  return true;
}

std::shared_ptr<Ticket> RowStore::read_missed(const Table& table, std::vector<WantedRow> missed,
                                              Priority priority, RowPlanes out, Clock::time_point submitted) {
  ReadPlan plan;
  if (!missed.empty()) plan = make_read_plan(std::move(missed), table.view.rows_per_page, merge_);
  add(counters_.missed_rows, plan.wanted.size());
  add(counters_.missed_unique_rows, plan.unique_rows);
  auto ticket =
      std::make_shared<Ticket>(table.view, std::move(plan), priority, out, *cache_, counters_, submitted);
  if (!ticket->plan().reads.empty()) scheduler_->submit(ticket);
  return ticket;
}

void RowStore::cancel(Ticket& ticket) {
  ticket.cancel();
  if (scheduler_ != nullptr) scheduler_->wake();
}

int RowStore::read_now(std::uint32_t table_idx, std::span<const std::int64_t> ids, RowPlanes out) {
  const Table& table = *tables_[table_idx];
  while (!ids.empty()) {
    const Clock::time_point now = Clock::now();
    const std::size_t count = std::min(ids.size(), kMaxIds);
    SubmitFault fault;
    std::vector<WantedRow> missed;
    if (!copy_present(table, ids.first(count), out, missed, fault)) return -ERANGE;
    if (missed.empty()) {  // most calls: no ticket, nothing to wait for
      counters_.request_latency.record(Clock::now() - now);
    } else {
      const auto ticket = read_missed(table, std::move(missed), Priority::kDecode, out, now);
      // No limit of its own: every read in flight has a deadline, so the ticket always ends.
      if (ticket->wait(std::chrono::nanoseconds::max()) != TicketState::kDone) return -ticket->failure().error;
    }
    ids = ids.subspan(count);
    out.weight += count * shape_.weight_bytes;
    out.scale += count * shape_.scale_bytes;
  }
  return 0;
}

std::size_t RowStore::find_foreign_id(std::uint32_t table, std::span<const std::int64_t> ids) const {
  const ColumnMap& columns = *tables_[table]->columns;
  const auto foreign =
      std::ranges::find_if(ids, [&](std::int64_t id) { return columns.local_row(id) == kNoRow; });
  return foreign == ids.end() ? SubmitFault::kNone : static_cast<std::size_t>(foreign - ids.begin());
}

bool RowStore::copy_from_ram(const Table& table, std::span<const std::int64_t> ids, RowPlanes out,
                             SubmitFault& fault) {
  const std::uint32_t row_bytes = shape_.row_bytes();
  std::array<const std::byte*, 2 * kAhead> ring;
  // Rows are asked for some ids ahead all the way: only the first ones are waited for.
  for (std::size_t idx = 0; idx < ids.size() + kAhead; ++idx) {
    if (idx < ids.size()) {
      const std::uint32_t local = table.columns->local_row(ids[idx]);
      if (local == kNoRow) {
        fault.bad_idx = idx;
        return false;
      }
      const std::byte* row = ring[idx % ring.size()] = table.ram->row(local, table.view.rows_per_page, row_bytes);
      for (std::uint32_t line = 0; line < row_bytes; line += 64) __builtin_prefetch(row + line);
      __builtin_prefetch(row + row_bytes - 1);
    }
    if (idx >= kAhead) copy_row(shape_, ring[(idx - kAhead) % ring.size()], out, idx - kAhead);
  }
  return true;
}

bool RowStore::copy_hits(const Table& table, std::span<const std::int64_t> ids, RowPlanes out,
                         std::vector<WantedRow>& missed, SubmitFault& fault) {
  std::array<RowKey, 512> keys;
  std::vector<std::uint32_t> absent;
  for (std::size_t first = 0; first < ids.size(); first += keys.size()) {
    const std::size_t count = std::min(keys.size(), ids.size() - first);
    for (std::size_t idx = 0; idx < count; ++idx) {
      const std::uint32_t row = table.columns->local_row(ids[first + idx]);
      if (row == kNoRow) {
        fault.bad_idx = first + idx;
        return false;
      }
      keys[idx] = table.view.key_base + row;
    }
    absent.clear();
    cache_->read_many(std::span(keys).first(count), out, first, absent);
    for (const std::uint32_t idx : absent)
      missed.push_back({static_cast<std::uint32_t>(first + idx), keys[idx] - table.view.key_base});
  }
  return true;
}

}  // namespace engram

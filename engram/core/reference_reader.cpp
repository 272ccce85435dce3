#include "reference_reader.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace engram {
namespace {

// Ids that a thread takes at a time: one, as a pool with a queue of rows does, would make the queue's lock the
// bottleneck on many cores; a few keep the comparison fair.
constexpr std::size_t kTake = 4;

using PageBuffer = std::unique_ptr<std::byte, decltype(&std::free)>;

PageBuffer make_page() {
  return {static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kPageBytes)), &std::free};
}

}  // namespace

ReferenceReader::ReferenceReader(const std::string& path, std::uint32_t num_threads,
                                 std::uint64_t cache_bytes) {
  OpenFault fault;
  if (open_direct(path, false, file_, fault) != 0) throw std::runtime_error(path + ": " + fault.message);
  const PageBuffer page = make_page();
  if (::pread(file_.fd(), page.get(), kHeaderBytes, 0) != static_cast<ssize_t>(kHeaderBytes))
    throw std::runtime_error(path + ": no header");
  std::memcpy(&header_, page.get(), sizeof(header_));
  if (const auto text = find_header_fault(header_)) throw std::runtime_error(path + ": " + *text);
  columns_ = std::make_unique<ColumnMap>(std::span(header_.columns, header_.num_columns));
  num_sets_ = cache_bytes / (kWays * kSlotBytes);
  if (num_sets_ > 0) sets_ = std::make_unique<Set[]>(num_sets_);
  rows_.resize(num_sets_ * kWays * shape().row_bytes());
  for (std::uint32_t idx = 0; idx < num_threads; ++idx) threads_.emplace_back([this] { work(); });
}

ReferenceReader::~ReferenceReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int ReferenceReader::read(std::span<const std::int64_t> ids, RowPlanes out) {
  std::unique_lock lock(mutex_);
  ids_ = ids;
  out_ = out;
  next_.store(0);
  error_.store(0);
  working_ = static_cast<std::uint32_t>(threads_.size());
  ++round_;
  start_.notify_all();
  done_.wait(lock, [&] { return working_ == 0; });
  return error_.load();
}

void ReferenceReader::work() {
  const PageBuffer page = make_page();
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    lock.unlock();
    for (;;) {
      const std::size_t first = next_.fetch_add(kTake, std::memory_order_relaxed);
      if (first >= ids_.size()) break;
      for (std::size_t idx = first; idx < std::min(first + kTake, ids_.size()); ++idx)
        if (const int error = read_one(idx, page.get())) error_.store(error);
    }
    lock.lock();
    if (--working_ == 0) done_.notify_one();
  }
}

int ReferenceReader::read_one(std::size_t idx, std::byte* page) {
  const std::uint32_t row = columns_->local_row(ids_[idx]);
  if (row == kNoRow) return -ERANGE;
  if (num_sets_ > 0 && find(row, idx)) return 0;
  const std::uint32_t page_idx = row / header_.rows_per_page;
  const auto offset = static_cast<off_t>(kHeaderBytes + std::uint64_t{page_idx} * kPageBytes);
  const ssize_t got = ::pread(file_.fd(), page, kPageBytes, offset);
  if (got < 0) return -errno;
  if (got != static_cast<ssize_t>(kPageBytes)) return -EIO;
  const std::size_t in_page = row - page_idx * header_.rows_per_page;
  const std::byte* bytes = page + in_page * shape().row_bytes();
  copy_row(shape(), bytes, out_, idx);
  if (num_sets_ > 0) keep(row, bytes);
  return 0;
}

ReferenceReader::Set& ReferenceReader::set_of(std::uint32_t row, std::byte*& rows) {
  const std::uint64_t set = (row * 0x9E3779B97F4A7C15ULL >> 32) * num_sets_ >> 32;
  rows = rows_.data() + set * kWays * shape().row_bytes();
  return sets_[set];
}

bool ReferenceReader::find(std::uint32_t row, std::size_t idx) {
  std::byte* rows = nullptr;
  Set& set = set_of(row, rows);
  while (set.lock.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  bool found = false;
  for (std::uint32_t way = 0; way < kWays && !found; ++way) {
    if (set.keys[way] != row + 1) continue;
    set.ages[way] = ++set.clock;
    copy_row(shape(), rows + std::size_t{way} * shape().row_bytes(), out_, idx);
    found = true;
  }
  set.lock.clear(std::memory_order_release);
  if (found) hits_.fetch_add(1, std::memory_order_relaxed);
  return found;
}

void ReferenceReader::keep(std::uint32_t row, const std::byte* bytes) {
  std::byte* rows = nullptr;
  Set& set = set_of(row, rows);
  while (set.lock.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  std::uint32_t victim = 0;
  for (std::uint32_t way = 0; way < kWays; ++way) {
    if (set.keys[way] == row + 1) victim = way;
    if (set.keys[way] == row + 1) break;
    if (set.ages[way] < set.ages[victim]) victim = way;
  }
  set.keys[victim] = row + 1;
  set.ages[victim] = ++set.clock;
  std::memcpy(rows + std::size_t{victim} * shape().row_bytes(), bytes, shape().row_bytes());
  set.lock.clear(std::memory_order_release);
}

}  // namespace engram

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
  if (cache_bytes > 0) cache_ = std::make_unique<SetCache>(shape(), cache_bytes);
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
  if (cache_ != nullptr && cache_->read(row, out_, idx)) {
    hits_.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  const std::uint32_t page_idx = row / header_.rows_per_page;
  const auto offset = static_cast<off_t>(kHeaderBytes + std::uint64_t{page_idx} * kPageBytes);
  const ssize_t got = ::pread(file_.fd(), page, kPageBytes, offset);
  if (got < 0) return -errno;
  if (got != static_cast<ssize_t>(kPageBytes)) return -EIO;
  const std::size_t in_page = row - page_idx * header_.rows_per_page;
  const std::byte* bytes = page + in_page * shape().row_bytes();
  copy_row(shape(), bytes, out_, idx);
  if (cache_ != nullptr) cache_->keep(row, bytes);
  return 0;
}

}  // namespace engram

// What the readers in circulation do, for comparison in benchmarks only: a pool of threads, one O_DIRECT pread
// of a 4 KiB page per row id, no de-duplication, no sorting; optionally a 16-way set-associative LRU cache.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "column_map.hpp"
#include "file_handle.hpp"
#include "row_shape.hpp"
#include "set_cache.hpp"
#include "table_format.hpp"

namespace engram {

class ReferenceReader {
 public:
  // Throws std::runtime_error: benchmark code, used from Python only.
  ReferenceReader(const std::string& path, std::uint32_t num_threads, std::uint64_t cache_bytes);
  ~ReferenceReader();

  RowShape shape() const { return {header_.weight_bytes, header_.scale_bytes}; }
  std::uint64_t hits() const { return hits_.load(); }

  // 0 or -errno. One call at a time.
  int read(std::span<const std::int64_t> ids, RowPlanes out);

 private:
  void work();
  int read_one(std::size_t idx, std::byte* page);

  FileHandle file_;
  PackedHeader header_{};
  std::unique_ptr<ColumnMap> columns_;
  std::unique_ptr<SetCache> cache_;
  std::atomic<std::uint64_t> hits_{0};

  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  std::uint64_t round_ = 0;
  std::uint32_t working_ = 0;
  bool stopping_ = false;
  std::span<const std::int64_t> ids_;
  RowPlanes out_;
  std::atomic<std::size_t> next_{0};
  std::atomic<int> error_{0};
  std::vector<std::thread> threads_;
};

}  // namespace engram

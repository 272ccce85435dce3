#include "set_cache.hpp"

#include <cstring>
#include <thread>

namespace engram {

SetCache::SetCache(RowShape shape, std::uint64_t bytes)
    : shape_(shape), num_sets_(bytes / (kWays * (shape.row_bytes() + kOverheadBytes))) {
  if (num_sets_ > 0) sets_ = std::make_unique<Set[]>(num_sets_);
  rows_.resize(num_sets_ * kWays * shape.row_bytes());
}

SetCache::Set& SetCache::set_of(std::uint32_t row, std::byte*& rows) {
  const std::uint64_t set = (row * 0x9E3779B97F4A7C15ULL >> 32) * num_sets_ >> 32;
  rows = rows_.data() + set * kWays * shape_.row_bytes();
  return sets_[set];
}

bool SetCache::read(std::uint32_t row, RowPlanes out, std::size_t out_idx) {
  if (num_sets_ == 0) return false;
  std::byte* rows = nullptr;
  Set& set = set_of(row, rows);
  while (set.lock.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  bool found = false;
  for (std::uint32_t way = 0; way < kWays && !found; ++way) {
    if (set.keys[way] != row + 1) continue;
    set.ages[way] = ++set.clock;
    copy_row(shape_, rows + std::size_t{way} * shape_.row_bytes(), out, out_idx);
    found = true;
  }
  set.lock.clear(std::memory_order_release);
  return found;
}

void SetCache::keep(std::uint32_t row, const std::byte* bytes) {
  if (num_sets_ == 0) return;
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
  std::memcpy(rows + std::size_t{victim} * shape_.row_bytes(), bytes, shape_.row_bytes());
  set.lock.clear(std::memory_order_release);
}

}  // namespace engram

#include "row_cache.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <new>

namespace engram {
namespace {

// Enough locks that 32 threads rarely meet; fewer in a small cache, where each shard needs room of its own.
constexpr std::uint64_t kMaxShards = 64;
constexpr std::uint64_t kMinSlotsPerShard = 256;

// Keys between asking for an index line, for the row, and reading it.
constexpr std::size_t kAhead = 16;

}  // namespace

RowCache::RowCache(RowShape shape, std::uint64_t bytes) {
  const std::size_t stride = (shape.row_bytes() + 7) / 8 * 8;
  const auto slot_bytes = static_cast<double>(stride) + CacheShard::kOverheadBytes;
  const auto slots = static_cast<std::uint64_t>(static_cast<double>(bytes) / slot_bytes);
  std::uint64_t num_shards = 1;
  while (num_shards < kMaxShards && slots / (num_shards * 2) >= kMinSlotsPerShard) num_shards *= 2;
  const std::uint64_t per_shard = std::min<std::uint64_t>(slots / num_shards, 0x3FFFFFFF);
  num_slots_ = per_shard * num_shards;
  if (num_slots_ == 0) return;
  shard_mask_ = num_shards - 1;
  mapped_bytes_ = num_slots_ * stride;
  void* rows = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (rows == MAP_FAILED) throw std::bad_alloc();
  // Huge pages spare a TLB miss per row. The kernel may decline: slower, same result.
  madvise(rows, mapped_bytes_, MADV_HUGEPAGE);
  rows_ = static_cast<std::byte*>(rows);
  shards_ = std::make_unique<CacheShard[]>(num_shards);
  for (std::uint64_t idx = 0; idx < num_shards; ++idx)
    shards_[idx].init(shape, stride, static_cast<std::uint32_t>(per_shard), rows_ + idx * per_shard * stride,
                      &ledger_);
}

RowCache::~RowCache() {
  if (rows_ != nullptr) munmap(rows_, mapped_bytes_);
}

std::uint64_t RowCache::num_rows() {
  std::uint64_t rows = 0;
  for (std::uint64_t idx = 0; num_slots_ > 0 && idx <= shard_mask_; ++idx) rows += shards_[idx].num_rows();
  return rows;
}

std::uint32_t RowCache::read_group(const RowKey* keys, std::size_t num_keys, RowPlanes out,
                                   std::size_t first_out_idx) {
  const auto all = static_cast<std::uint32_t>((std::uint64_t{1} << num_keys) - 1);
  if (num_slots_ == 0) return all;
  std::array<std::uint64_t, kGroup> hashes;
  for (std::size_t idx = 0; idx < num_keys; ++idx) {
    hashes[idx] = hash_key(keys[idx]);
    shard(hashes[idx]).prefetch_index(hashes[idx]);
  }
  for (std::size_t idx = 0; idx < num_keys; ++idx) shard(hashes[idx]).prefetch_row(keys[idx], hashes[idx]);
  std::uint32_t missed = 0;
  for (std::size_t idx = 0; idx < num_keys; ++idx) {
    const bool hit = shard(hashes[idx]).read(keys[idx], hashes[idx], out, first_out_idx + idx);
    missed |= std::uint32_t{!hit} << idx;
  }
  return missed;
}

void RowCache::read_many(std::span<const RowKey> keys, RowPlanes out, std::size_t first_out_idx,
                         std::vector<std::uint32_t>& missed) {
  if (num_slots_ == 0) {
    for (std::size_t idx = 0; idx < keys.size(); ++idx) missed.push_back(static_cast<std::uint32_t>(idx));
    return;
  }
  std::array<std::uint64_t, 4 * kAhead> ring;
  for (std::size_t idx = 0; idx < keys.size() + 2 * kAhead; ++idx) {
    if (idx < keys.size()) {
      const std::uint64_t hash = ring[idx % ring.size()] = hash_key(keys[idx]);
      shard(hash).prefetch_index(hash);
    }
    if (const std::size_t row = idx - kAhead; idx >= kAhead && row < keys.size()) {
      const std::uint64_t hash = ring[row % ring.size()];
      shard(hash).prefetch_row(keys[row], hash);
    }
    if (idx < 2 * kAhead) continue;
    const std::size_t done = idx - 2 * kAhead;
    const std::uint64_t hash = ring[done % ring.size()];
    if (!shard(hash).read(keys[done], hash, out, first_out_idx + done))
      missed.push_back(static_cast<std::uint32_t>(done));
  }
}

bool RowCache::contains(RowKey key) {
  if (num_slots_ == 0) return false;
  const std::uint64_t hash = hash_key(key);
  return shard(hash).contains(key, hash);
}

void RowCache::admit(RowKey key, const std::byte* row, std::uint32_t asked) {
  if (num_slots_ == 0) return;
  const std::uint64_t hash = hash_key(key);
  shard(hash).admit(key, hash, row, asked);
}

bool RowCache::stage(RowKey key, const std::byte* row, WindowId window) {
  if (num_slots_ == 0) return false;
  const std::uint64_t hash = hash_key(key);
  return shard(hash).stage(key, hash, row, window);
}

void RowCache::drop_closed() {
  for (std::uint64_t idx = 0; num_slots_ > 0 && idx <= shard_mask_; ++idx) shards_[idx].drop_closed();
}

}  // namespace engram

// Bounded cache of rows, sharded by key so that any thread may read and fill it; also the look-ahead's store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache_shard.hpp"
#include "row_shape.hpp"
#include "window_ledger.hpp"

namespace engram {

class RowCache {
 public:
  static constexpr std::size_t kGroup = 32;

  // Uses at most bytes in all: rows, index, ghosts. 0 makes a cache that holds nothing.
  // Throws std::bad_alloc when the memory cannot be mapped.
  RowCache(RowShape shape, std::uint64_t bytes);
  ~RowCache();
  RowCache(const RowCache&) = delete;
  RowCache& operator=(const RowCache&) = delete;

  std::uint64_t num_slots() const { return num_slots_; }
  std::uint64_t num_rows();

  // Copies what is here of num_keys <= kGroup rows to out[first_out_idx...]; bit i of the result: key i missed.
  // Memory latency of the group's rows overlaps.
  std::uint32_t read_group(const RowKey* keys, std::size_t num_keys, RowPlanes out, std::size_t first_out_idx);

  // As read_group, of any number of keys; the places of those that missed are appended. Index lines and rows are
  // asked for a few keys ahead all the way, so that only the first ones are waited for.
  void read_many(std::span<const RowKey> keys, RowPlanes out, std::size_t first_out_idx,
                 std::vector<std::uint32_t>& missed);

  bool contains(RowKey key);
  void admit(RowKey key, const std::byte* row, std::uint32_t asked = 1);
  bool stage(RowKey key, const std::byte* row, WindowId window);

  // Drops the staged rows of all windows that the ledger has closed.
  void drop_closed();

  WindowLedger& ledger() { return ledger_; }

 private:
  CacheShard& shard(std::uint64_t hash) { return shards_[hash >> shard_shift_ & shard_mask_]; }

  WindowLedger ledger_;
  std::uint64_t num_slots_ = 0;
  unsigned shard_shift_ = 58;
  std::uint64_t shard_mask_ = 0;
  std::size_t mapped_bytes_ = 0;
  std::byte* rows_ = nullptr;
  std::unique_ptr<CacheShard[]> shards_;
};

}  // namespace engram

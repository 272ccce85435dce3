// Cache policies side by side on a trace, without a disk: what each keeps and what it costs. Benchmarks only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "row_cache.hpp"
#include "row_shape.hpp"

namespace engram {

class CachePolicy {
 public:
  struct Count {
    std::uint64_t hits = 0;
    std::uint64_t missed_unique = 0;  // rows that a reader would have to fetch
  };

  // "s3fifo" (the store's own cache), "lru" or "set16". Null for any other name.
  static std::unique_ptr<CachePolicy> make(std::string_view name, RowShape shape, std::uint64_t bytes);

  virtual ~CachePolicy() = default;

  // One request, as the store serves it: hits are copied; then every missed row enters once.
  Count step(std::span<const std::int64_t> ids);

 protected:
  explicit CachePolicy(RowShape shape) : shape_(shape), row_(shape.row_bytes()) {}

  // Copies what is here of at most RowCache::kGroup keys to out[0...]; bit i of the result: key i missed.
  virtual std::uint32_t read_group(const RowKey* keys, std::size_t count, RowPlanes out) = 0;
  virtual void keep(RowKey key, const std::byte* row, std::uint32_t asked) = 0;

  RowShape shape_;

 private:
  std::vector<std::byte> row_;
  std::vector<std::byte> weight_;
  std::vector<std::byte> scale_;
  std::vector<RowKey> missed_;
};

}  // namespace engram

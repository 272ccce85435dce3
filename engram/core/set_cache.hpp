// A 16-way set-associative LRU cache of rows, as the readers in circulation have it; for comparison only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "row_shape.hpp"

namespace engram {

class SetCache {
 public:
  static constexpr std::uint32_t kWays = 16;
  static constexpr std::uint32_t kOverheadBytes = 8;  // key and age of a row

  // Uses at most bytes; below one set's worth it holds nothing.
  SetCache(RowShape shape, std::uint64_t bytes);

  bool read(std::uint32_t row, RowPlanes out, std::size_t out_idx);
  void keep(std::uint32_t row, const std::byte* bytes);

 private:
  struct Set {
    std::atomic_flag lock;
    std::uint32_t clock = 0;
    std::uint32_t keys[kWays] = {};  // row + 1; 0 = empty
    std::uint32_t ages[kWays] = {};
  };

  Set& set_of(std::uint32_t row, std::byte*& rows);

  RowShape shape_;
  std::uint64_t num_sets_;
  std::unique_ptr<Set[]> sets_;
  std::vector<std::byte> rows_;
};

}  // namespace engram

// Global row ids of a layer's table -> local rows of the packed file that holds the owned columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "table_format.hpp"

namespace engram {

inline constexpr std::uint32_t kNoRow = 0xFFFFFFFF;

class ColumnMap {
 public:
  explicit ColumnMap(std::span<const PackedColumn> columns);

  // The local row of a global row id, or kNoRow when no owned column holds it.
  std::uint32_t local_row(std::int64_t row_id) const {
    const auto id = static_cast<std::uint64_t>(row_id);  // a negative id becomes one past the end
    if (id >= end_) return kNoRow;
    const Range* range = &ranges_[guess_[id >> shift_]];
    while (id >= range->end) ++range;
    return id < range->first ? kNoRow : static_cast<std::uint32_t>(id - range->first + range->local);
  }

 private:
  struct Range {
    std::uint64_t first;
    std::uint64_t end;
    std::uint64_t local;
  };

  std::vector<Range> ranges_;        // ascending; adjacent owned columns are one range
  std::vector<std::uint8_t> guess_;  // first range that may hold ids of a block of 2^shift_ ids
  std::uint64_t end_ = 0;
  unsigned shift_ = 0;
};

}  // namespace engram

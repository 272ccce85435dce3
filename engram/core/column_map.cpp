#include "column_map.hpp"

#include <bit>

namespace engram {
namespace {

// 4096 guesses fit the first-level cache and leave at most one step to the right range for 128 columns.
constexpr unsigned kGuessBits = 12;

}  // namespace

ColumnMap::ColumnMap(std::span<const PackedColumn> columns) {
  std::uint64_t local = 0;
  for (const PackedColumn& column : columns) {
    const std::uint64_t end = column.first_row + column.num_rows;
    if (!ranges_.empty() && ranges_.back().end == column.first_row) {
      ranges_.back().end = end;
    } else {
      ranges_.push_back({column.first_row, end, local});
    }
    local += column.num_rows;
  }
  end_ = ranges_.back().end;
  const auto bits = static_cast<unsigned>(std::bit_width(end_));
  shift_ = bits > kGuessBits ? bits - kGuessBits : 0;
  std::uint8_t range = 0;
  for (std::uint64_t block = 0; block <= (end_ - 1) >> shift_; ++block) {
    while ((block << shift_) >= ranges_[range].end) ++range;
    guess_.push_back(range);
  }
}

}  // namespace engram

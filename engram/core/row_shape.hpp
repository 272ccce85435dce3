// How a row is split into its weight and scale planes, and the one copy routine that all readers share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace engram {

struct RowShape {
  std::uint32_t weight_bytes = 0;
  std::uint32_t scale_bytes = 0;

  std::uint32_t row_bytes() const { return weight_bytes + scale_bytes; }
  bool operator==(const RowShape&) const = default;
};

// Where rows go: row i at weight + i * weight_bytes and scale + i * scale_bytes. The memory is the caller's.
struct RowPlanes {
  std::byte* weight = nullptr;
  std::byte* scale = nullptr;
};

// Constant sizes for the model's rows: the compiler turns both copies into a few vector moves.
inline void copy_row(RowShape shape, const std::byte* row, RowPlanes out, std::size_t out_idx) {
  if (shape.weight_bytes == 256 && shape.scale_bytes == 8) {
    std::memcpy(out.weight + out_idx * 256, row, 256);
    std::memcpy(out.scale + out_idx * 8, row + 256, 8);
    return;
  }
  std::memcpy(out.weight + out_idx * shape.weight_bytes, row, shape.weight_bytes);
  if (shape.scale_bytes == 0) return;
  std::memcpy(out.scale + out_idx * shape.scale_bytes, row + shape.weight_bytes, shape.scale_bytes);
}

}  // namespace engram

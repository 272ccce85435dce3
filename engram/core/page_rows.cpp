#include "page_rows.hpp"

#include <cstring>

namespace engram {
namespace {

// Sizes known at compile time turn the two copies into vector moves: the released model's are 256 and 8.
template <std::size_t kWeightBytes, std::size_t kScaleBytes>
void interleave(const PageShape& shape, const std::uint8_t* weight, const std::uint8_t* scale,
                std::size_t first_row, std::size_t num_rows, std::uint8_t* pages) {
  const std::size_t weight_bytes = kWeightBytes == 0 ? shape.weight_bytes : kWeightBytes;
  const std::size_t scale_bytes = kWeightBytes == 0 ? shape.scale_bytes : kScaleBytes;
  const std::size_t row_bytes = weight_bytes + scale_bytes;
  std::size_t slot = first_row % shape.rows_per_page;
  std::uint8_t* page = pages + first_row / shape.rows_per_page * shape.page_bytes;
  for (std::size_t row = 0; row < num_rows; ++row) {
    std::uint8_t* target = page + slot * row_bytes;
    std::memcpy(target, weight, weight_bytes);
    // memcpy wants a valid pointer even for no bytes, and a plane without scales may have none.
    if (scale_bytes != 0) std::memcpy(target + weight_bytes, scale, scale_bytes);
    weight += weight_bytes;
    scale += scale_bytes;
    if (++slot == shape.rows_per_page) {
      std::memset(page + slot * row_bytes, 0, shape.page_bytes - slot * row_bytes);
      slot = 0;
      page += shape.page_bytes;
    }
  }
}

}  // namespace

void interleave_rows(const PageShape& shape, const std::uint8_t* weight, const std::uint8_t* scale,
                     std::size_t first_row, std::size_t num_rows, std::uint8_t* pages) {
  if (shape.weight_bytes == 256 && shape.scale_bytes == 8) {
    interleave<256, 8>(shape, weight, scale, first_row, num_rows, pages);
  } else {
    interleave<0, 0>(shape, weight, scale, first_row, num_rows, pages);
  }
}

}  // namespace engram

// Weight and scale planes -> pages of whole rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engram {

struct PageShape {
  std::size_t weight_bytes;
  std::size_t scale_bytes;
  std::size_t rows_per_page;
  std::size_t page_bytes;
};

// Writes num_rows rows into `pages` as rows first_row, first_row + 1, ... counted from the first page's start.
// A page's tail is zeroed with its last row; the rest of a last, partial page is the caller's to zero.
void interleave_rows(const PageShape& shape, const std::uint8_t* weight, const std::uint8_t* scale,
                     std::size_t first_row, std::size_t num_rows, std::uint8_t* pages);

}  // namespace engram

// Rows laid out in pages, piece by piece, against their places by the format.
#include <random>
#include <vector>

#include "check.hpp"
#include "page_rows.hpp"

using namespace engram;

namespace {

void check_shape(std::mt19937& random, std::size_t weight_bytes, std::size_t scale_bytes, std::size_t page_bytes) {
  const PageShape shape{weight_bytes, scale_bytes, page_bytes / (weight_bytes + scale_bytes), page_bytes};
  const std::size_t num_rows = random() % 100;
  std::vector<std::uint8_t> weight(num_rows * weight_bytes), scale(num_rows * scale_bytes);
  for (auto& byte : weight) byte = static_cast<std::uint8_t>(random());
  for (auto& byte : scale) byte = static_cast<std::uint8_t>(random());
  const std::size_t num_pages = (num_rows + shape.rows_per_page - 1) / shape.rows_per_page;
  std::vector<std::uint8_t> pages(num_pages * page_bytes, 0xee);
  for (std::size_t row = 0; row < num_rows;) {
    const std::size_t count = 1 + random() % (num_rows - row);
    interleave_rows(shape, weight.data() + row * weight_bytes, scale.data() + row * scale_bytes, row, count,
                    pages.data());
    row += count;
  }
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::uint8_t* page = pages.data() + row / shape.rows_per_page * page_bytes;
    const std::uint8_t* seen = page + row % shape.rows_per_page * (weight_bytes + scale_bytes);
    for (std::size_t i = 0; i < weight_bytes; ++i) CHECK(seen[i] == weight[row * weight_bytes + i]);
    for (std::size_t i = 0; i < scale_bytes; ++i) CHECK(seen[weight_bytes + i] == scale[row * scale_bytes + i]);
  }
  for (std::size_t page = 0; page < num_rows / shape.rows_per_page; ++page) {
    const std::size_t used = shape.rows_per_page * (weight_bytes + scale_bytes);
    for (std::size_t i = used; i < page_bytes; ++i) CHECK(pages[page * page_bytes + i] == 0);
  }
}

}  // namespace

int main() {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    check_shape(random, 256, 8, 4096);
    check_shape(random, 1 + random() % 300, random() % 20, 1024);
  }
  return 0;
}

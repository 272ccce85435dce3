// Headers: sound ones pass, any damage is named and never crashes the column map built from it.
#include <random>

#include "column_map.hpp"
#include "packed_file.hpp"

using namespace engram;

namespace {

void map_agrees_with_brute_force(const PackedHeader& header) {
  const ColumnMap map(std::span(header.columns, header.num_columns));
  std::uint64_t local = 0;
  std::vector<std::uint32_t> expected(header.total_rows + 3, kNoRow);
  for (const std::int64_t id : owned_ids(header))
    expected[static_cast<std::size_t>(id)] = static_cast<std::uint32_t>(local++);
  for (std::size_t id = 0; id < expected.size(); ++id)
    CHECK(map.local_row(static_cast<std::int64_t>(id)) == expected[id]);
  for (const std::int64_t id : {std::int64_t{-1}, INT64_MIN, INT64_MAX}) CHECK(map.local_row(id) == kNoRow);
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  for (std::uint32_t tp = 1; tp <= 4; ++tp)
    for (std::uint32_t rank = 0; rank < tp; ++rank) {
      std::vector<std::uint64_t> sizes;
      for (std::size_t column = 0; column < 4 + random() % 120; ++column) sizes.push_back(1 + random() % 300);
      const PackedHeader header = make_header(rank, tp, sizes);
      CHECK(!find_header_fault(header));
      map_agrees_with_brute_force(header);
    }

  const PackedHeader sound = make_header(1, 2, {50, 60, 70, 80, 90, 100});
  for (int round = 0; round < 200'000; ++round) {
    PackedHeader header = sound;
    auto* bytes = reinterpret_cast<std::uint8_t*>(&header);
    // Mostly the fields and the first column entries, where damage can do harm.
    for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      const std::size_t offset = random() % 2 == 0 ? random() % 72 : 256 + random() % 96;
      bytes[offset] ^= static_cast<std::uint8_t>(1U << (random() % 8));
    }
    if (find_header_fault(header)) continue;
    if (header.total_rows > 1'000'000) continue;  // harmless, too slow to compare
    map_agrees_with_brute_force(header);
  }
  return 0;
}

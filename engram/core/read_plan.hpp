// Pure: wanted rows -> deduplicated, sorted, merged page reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace engram {

// One occurrence of a row in a request; ordered by row first.
struct WantedRow {
  std::uint32_t out_idx;
  std::uint32_t row;  // local row
};

// One read: whole pages, and the occurrences (a run of ReadPlan::wanted) that it serves.
struct PlannedRead {
  std::uint32_t first_page;
  std::uint32_t num_pages;
  std::uint32_t first_wanted;
  std::uint32_t num_wanted;
};

struct ReadPlan {
  std::vector<WantedRow> wanted;  // sorted by row
  std::vector<PlannedRead> reads;  // ascending, disjoint
  std::uint64_t unique_rows = 0;
  std::uint64_t num_pages = 0;
};

// Sorts `wanted` and covers it with reads; neighbouring pages become one read of up to max_pages_per_read.
ReadPlan make_read_plan(std::vector<WantedRow> wanted, std::uint32_t rows_per_page,
                        std::uint32_t max_pages_per_read);

}  // namespace engram

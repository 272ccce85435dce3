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

// One read: whole pages, some perhaps unwanted, and the occurrences (a run of ReadPlan::wanted) that it serves.
struct PlannedRead {
  std::uint32_t first_page;
  std::uint16_t num_pages;
  std::uint16_t num_wanted_pages;
  std::uint32_t first_wanted;
  std::uint32_t num_wanted;
};

struct ReadPlan {
  std::vector<WantedRow> wanted;   // sorted by row
  std::vector<PlannedRead> reads;  // ascending, disjoint
  std::uint64_t unique_rows = 0;
  std::uint64_t num_pages = 0;  // wanted ones
};

struct MergeLimits {
  std::uint32_t max_pages = 1;      // of one read, at least 1
  std::uint32_t max_gap_pages = 0;  // unwanted pages read through to join two wanted ones
};

// Sorts `wanted` and covers it with reads; pages near each other become one read within the limits.
ReadPlan make_read_plan(std::vector<WantedRow> wanted, std::uint32_t rows_per_page, MergeLimits limits);

}  // namespace engram

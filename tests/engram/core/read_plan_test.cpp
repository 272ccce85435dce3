// Read plans: every wanted row is covered by exactly one read, pages are read once, reads stay bounded.
#include <algorithm>
#include <random>
#include <set>

#include "check.hpp"
#include "read_plan.hpp"

using namespace engram;

int main() {
  std::mt19937 random(2);
  for (int round = 0; round < 600; ++round) {
    const std::uint32_t rows_per_page = 1 + random() % 20;
    const MergeLimits limits{1 + static_cast<std::uint32_t>(random()) % 6,
                             static_cast<std::uint32_t>(random()) % 3};
    const std::uint32_t range = 1 + random() % 40'000;
    std::vector<WantedRow> wanted;
    for (std::uint32_t idx = 0; idx < random() % 3000; ++idx)
      wanted.push_back({idx, static_cast<std::uint32_t>(random()) % range});
    if (round == 0) wanted = {{0, 0xFFFFFFFE}, {1, 0}, {2, 0xFFFFFFFE}};
    std::set<std::uint32_t> rows;
    std::set<std::uint32_t> pages;
    for (const WantedRow& row : wanted) {
      rows.insert(row.row);
      pages.insert(row.row / rows_per_page);
    }
    const std::size_t count = wanted.size();
    const ReadPlan plan = make_read_plan(std::move(wanted), rows_per_page, limits);
    CHECK(plan.unique_rows == rows.size());
    CHECK(plan.num_pages == pages.size());
    CHECK(plan.wanted.size() == count);
    CHECK(std::ranges::is_sorted(plan.wanted, {}, &WantedRow::row));
    std::vector<bool> seen(count);
    std::uint32_t next_wanted = 0;
    std::uint32_t last_page = 0;
    std::uint64_t next_page = 0;
    std::uint32_t previous_first = 0;
    std::uint64_t num_pages = 0;
    std::uint64_t wanted_pages = 0;
    bool first = true;
    for (const PlannedRead& read : plan.reads) {
      CHECK(read.num_pages >= 1 && read.num_pages <= limits.max_pages);
      wanted_pages += read.num_wanted_pages;
      CHECK(read.first_page >= next_page);
      // Two reads that the limits would have joined are a missed merge.
      if (!first && limits.max_pages > 1 && read.first_page - next_page <= limits.max_gap_pages)
        CHECK(read.first_page - previous_first >= limits.max_pages);
      first = false;
      previous_first = read.first_page;
      CHECK(read.first_wanted == next_wanted && read.num_wanted >= 1);
      for (std::uint32_t idx = next_wanted; idx < next_wanted + read.num_wanted; ++idx) {
        const std::uint32_t page = plan.wanted[idx].row / rows_per_page;
        num_pages += idx == next_wanted || page != plan.wanted[idx - 1].row / rows_per_page;
        CHECK(page - last_page <= limits.max_gap_pages + 1 || idx == next_wanted);
        last_page = page;
        CHECK(page >= read.first_page && page < read.first_page + read.num_pages);
        CHECK(!seen[plan.wanted[idx].out_idx]);
        seen[plan.wanted[idx].out_idx] = true;
      }
      next_wanted += read.num_wanted;
      next_page = std::uint64_t{read.first_page} + read.num_pages;
      CHECK(last_page == read.first_page + read.num_pages - 1);
    }
    CHECK(next_wanted == count);
    CHECK(num_pages == pages.size() && wanted_pages == pages.size());
  }
  return 0;
}

#include "read_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace engram {
namespace {

// Below this a comparison sort is faster than three counting passes (measured: crossover near 500).
constexpr std::size_t kRadixFrom = 512;
constexpr unsigned kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

void sort_by_radix(std::vector<WantedRow>& rows) {
  std::vector<WantedRow> other(rows.size());
  for (unsigned shift = 0; shift < 32; shift += kDigitBits) {
    std::array<std::uint32_t, kDigits> start{};
    for (const WantedRow& wanted : rows) ++start[(wanted.row >> shift) & (kDigits - 1)];
    std::uint32_t sum = 0;
    for (std::uint32_t& count : start) sum += std::exchange(count, sum);
    for (const WantedRow& wanted : rows) other[start[(wanted.row >> shift) & (kDigits - 1)]++] = wanted;
    rows.swap(other);
  }
}

}  // namespace

ReadPlan make_read_plan(std::vector<WantedRow> wanted, std::uint32_t rows_per_page, MergeLimits limits) {
  if (wanted.size() < kRadixFrom) {
    std::ranges::sort(wanted, {}, &WantedRow::row);
  } else {
    sort_by_radix(wanted);
  }
  ReadPlan plan;
  plan.reads.reserve(wanted.size());
  std::uint64_t previous_row = ~std::uint64_t{0};
  for (std::uint32_t idx = 0; idx < wanted.size(); ++idx) {
    const std::uint32_t row = wanted[idx].row;
    const std::uint32_t page = row / rows_per_page;
    plan.unique_rows += row != previous_row;
    previous_row = row;
    if (!plan.reads.empty()) {
      PlannedRead& last = plan.reads.back();
      const std::uint32_t end = last.first_page + last.num_pages;
      const bool new_page = page >= end;
      const bool fits = page - last.first_page < limits.max_pages;
      if (!new_page || (fits && page - end <= limits.max_gap_pages)) {
        if (new_page) last.num_pages = static_cast<std::uint16_t>(page - last.first_page + 1);
        last.num_wanted_pages = static_cast<std::uint16_t>(last.num_wanted_pages + new_page);
        last.num_wanted += 1;
        plan.num_pages += new_page;
        continue;
      }
    }
    plan.reads.push_back({page, 1, 1, idx, 1});
    plan.num_pages += 1;
  }
  plan.wanted = std::move(wanted);
  return plan;
}

}  // namespace engram

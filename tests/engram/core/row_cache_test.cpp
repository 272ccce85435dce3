// The row cache under many threads: right rows or none, never more than its room, staged rows all accounted
// for.
#include <atomic>
#include <random>
#include <thread>

#include "packed_file.hpp"
#include "row_cache.hpp"

using namespace engram;

namespace {

constexpr std::uint64_t kBytes = 400'000;

void expect_memory_bound() {
  for (const std::uint64_t bytes : {0ULL, 10ULL, 100ULL, 5'000ULL, 400'000ULL, 9'000'000ULL}) {
    RowCache cache(kTestShape, bytes);
    CHECK(static_cast<double>(cache.num_slots()) * (kTestShape.row_bytes() + CacheShard::kOverheadBytes) <=
          static_cast<double>(bytes));
    std::byte row[32];
    for (RowKey key = 0; key < 30'000; ++key) {
      make_row(0, key, row);
      cache.admit(key, row);
    }
    CHECK(cache.num_rows() == std::min<std::uint64_t>(cache.num_slots(), 30'000));
  }
}

// Rows that are in use survive sweeps of twenty times the room; the same sweeps would empty a plain LRU.
void expect_scan_resistance() {
  RowCache cache(kTestShape, kBytes);
  const auto hot = static_cast<RowKey>(cache.num_slots() / 2);
  std::byte row[32];
  TestPlanes planes(RowCache::kGroup);
  const auto ask = [&](RowKey key) {
    if (cache.read_group(&key, 1, planes.out(), 0) == 0) return true;
    make_row(0, key, row);
    cache.admit(key, row);
    return false;
  };
  for (int round = 0; round < 3; ++round)
    for (RowKey key = 0; key < hot; ++key) ask(key);
  RowKey cold = 1'000'000;
  for (RowKey swept = 0; swept < cache.num_slots() * 20; ++swept) ask(cold++);
  std::uint32_t hits = 0;
  for (RowKey key = 0; key < hot; ++key) hits += ask(key);
  CHECK(hits > hot * 9 / 10);
}

void hammer(RowCache& cache, std::uint64_t seed, std::atomic<bool>& planner_done, bool planner) {
  std::mt19937_64 random(seed);
  TestPlanes planes(RowCache::kGroup);
  std::byte row[32];
  for (int step = 0; step < 4000; ++step) {
    RowKey keys[RowCache::kGroup];
    for (RowKey& key : keys) key = static_cast<RowKey>(random() % 40'000);
    const std::uint32_t missed = cache.read_group(keys, RowCache::kGroup, planes.out(), 0);
    for (std::size_t idx = 0; idx < RowCache::kGroup; ++idx) {
      if ((missed >> idx & 1) == 0) {
        CHECK(planes.holds(idx, 0, keys[idx]));
        continue;
      }
      make_row(0, keys[idx], row);
      if (!planner) cache.admit(keys[idx], row);
    }
    if (!planner || step % 20 != 0) continue;
    const auto window = cache.ledger().open(64);
    CHECK(window);
    for (int staged = 0; staged < 64; ++staged) {
      const auto key = static_cast<RowKey>(random() % 40'000);
      make_row(0, key, row);
      if (!cache.stage(key, row, *window)) cache.ledger().settle(*window, 1);
    }
    cache.ledger().close(*window);
    if (random() % 3 == 0) cache.drop_closed();
  }
  if (planner) planner_done = true;
}

}  // namespace

int main() {
  expect_memory_bound();
  expect_scan_resistance();
  RowCache cache(kTestShape, kBytes);
  std::vector<std::thread> threads;
  std::atomic<bool> planner_done{false};
  for (std::uint64_t idx = 0; idx < 8; ++idx)
    threads.emplace_back([&, idx] { hammer(cache, idx, planner_done, idx == 0); });
  for (std::thread& thread : threads) thread.join();
  CHECK(planner_done);
  CHECK(cache.num_rows() <= cache.num_slots());
  cache.drop_closed();
  CHECK(cache.ledger().total_rows() == 0);
  return 0;
}

// Log-linear histogram of durations: 8 buckets per doubling, 12 % resolution, lock-free recording.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

namespace engram {

class LatencyHistogram {
 public:
  static constexpr unsigned kSubBits = 3;
  static constexpr std::size_t kBuckets = 40U << kSubBits;  // up to 2^40 ns, 18 minutes

  void record(std::chrono::nanoseconds duration) {
    const auto ns = static_cast<std::uint64_t>(duration.count() > 0 ? duration.count() : 0);
    counts_[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  std::uint64_t count(std::size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  std::uint64_t sum_ns() const { return sum_ns_.load(std::memory_order_relaxed); }

  // First value that the next bucket would take.
  static std::uint64_t upper_ns(std::size_t bucket) {
    const std::uint64_t next = bucket + 1;
    if (next < (2U << kSubBits)) return next;
    const auto octave = static_cast<unsigned>(next >> kSubBits) - 1;
    return ((next & ((1U << kSubBits) - 1)) + (1U << kSubBits)) << octave;
  }

  static std::size_t bucket_of(std::uint64_t ns) {
    if (ns < (1U << kSubBits)) return ns;
    const auto octave = static_cast<unsigned>(std::bit_width(ns)) - 1 - kSubBits;
    const std::size_t bucket =
        ((octave + std::size_t{1}) << kSubBits) + ((ns >> octave) & ((1U << kSubBits) - 1));
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> sum_ns_{0};
};

}  // namespace engram

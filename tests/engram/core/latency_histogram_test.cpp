// Buckets are contiguous, ordered and within their resolution.
#include "latency_histogram.hpp"
#include "check.hpp"

using engram::LatencyHistogram;

int main() {
  std::size_t previous = 0;
  for (std::uint64_t ns = 0; ns < 3'000'000; ns += 1 + ns / 1000) {
    const std::size_t bucket = LatencyHistogram::bucket_of(ns);
    CHECK(bucket == previous || bucket == previous + 1);
    CHECK(ns < LatencyHistogram::upper_ns(bucket));
    CHECK(bucket == 0 || ns >= LatencyHistogram::upper_ns(bucket - 1));
    CHECK(LatencyHistogram::upper_ns(bucket) <= ns + ns / 8 + 2);
    previous = bucket;
  }
  CHECK(LatencyHistogram::bucket_of(~0ULL) == LatencyHistogram::kBuckets - 1);
  LatencyHistogram histogram;
  histogram.record(std::chrono::nanoseconds(-5));
  histogram.record(std::chrono::microseconds(50));
  CHECK(histogram.count(0) == 1 && histogram.sum_ns() == 50'000);
  CHECK(histogram.count(LatencyHistogram::bucket_of(50'000)) == 1);
  return 0;
}

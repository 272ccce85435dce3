"""Counters and latency histograms of a row store as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyHistogram:
    """buckets: (upper bound in nanoseconds, count), ascending, empty ones left out; 12 % resolution."""

    buckets: tuple[tuple[int, int], ...]
    sum_ns: int

    @property
    def count(self) -> int:
        return sum(count for _, count in self.buckets)

    def quantile_s(self, quantile: float) -> float:
        """Upper bound of the bucket that holds this quantile; 0 without samples."""
        left = quantile * self.count
        for upper_ns, count in self.buckets:
            left -= count
            if left <= 0:
                return upper_ns / 1e9
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCounters:
    """Since open, unless it says gauge. engram/core/counters.hpp explains each in one line."""

    requests: int
    rows: int
    hit_rows: int
    missed_rows: int
    missed_unique_rows: int
    pages: int
    lookahead_pages: int
    reads: int
    read_bytes: int
    lookahead_rows: int
    lookahead_staged_rows: int
    lookahead_unused_rows: int
    retried_reads: int
    failed_reads: int
    timed_out_reads: int
    failed_requests: int
    cancelled_requests: int
    reads_in_flight: int
    lookahead_reads_in_flight: int
    queued_requests: int
    cached_rows: int
    cache_slots: int
    lookahead_held_rows: int
    read_latency: LatencyHistogram
    request_latency: LatencyHistogram

    @property
    def hit_share(self) -> float:
        return self.hit_rows / self.rows if self.rows else 0.0


def make_counters(raw: Mapping[str, object]) -> StoreCounters:
    """From the core's dictionary; a missing or unknown name is an error."""
    values: dict[str, object] = dict(raw)
    for name in ("read_latency", "request_latency"):
        histogram = values[name]
        assert isinstance(histogram, dict)
        values[name] = LatencyHistogram(
            buckets=tuple((upper, count) for upper, count in histogram["buckets"]), sum_ns=histogram["sum_ns"]
        )
    unknown = values.keys() - {field.name for field in fields(StoreCounters)}
    assert not unknown, f"counters.hpp and StoreCounters disagree: {unknown}"
    return StoreCounters(**values)  # type: ignore[arg-type]

"""Row store counters as Prometheus metrics (prometheus-client), read from the store at scrape time."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engram.row_counters import LatencyHistogram, StoreCounters
from engram.row_store import RowStore

# Name, what it counts, and the fields of StoreCounters that feed it by label value.
_COUNTERS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "engram_requests",
        "Submitted reads by how they ended.",
        "state",
        {"submitted": "requests", "failed": "failed_requests", "cancelled": "cancelled_requests"},
    ),
    (
        "engram_rows",
        "Row ids asked for, by where the rows came from.",
        "source",
        {"memory": "hit_rows", "disk": "missed_rows"},
    ),
    ("engram_unique_rows_read", "Distinct rows read from disk for submits.", "", {"": "missed_unique_rows"}),
    (
        "engram_pages_read",
        "4 KiB pages read.",
        "purpose",
        {"request": "pages", "lookahead": "lookahead_pages"},
    ),
    (
        "engram_reads",
        "Disk reads by how they ended; one read covers one or more pages.",
        "state",
        {
            "done": "reads",
            "retried": "retried_reads",
            "failed": "failed_reads",
            "timed_out": "timed_out_reads",
        },
    ),
    ("engram_read_bytes", "Bytes read from disk.", "", {"": "read_bytes"}),
    (
        "engram_lookahead_rows",
        "Rows of the look-ahead.",
        "state",
        {"planned": "lookahead_rows", "staged": "lookahead_staged_rows", "unused": "lookahead_unused_rows"},
    ),
)
_GAUGES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "engram_reads_in_flight",
        "Disk reads in flight (queue depth in use).",
        "purpose",
        {"all": "reads_in_flight", "lookahead": "lookahead_reads_in_flight"},
    ),
    ("engram_queued_requests", "Requests with reads not yet started.", "", {"": "queued_requests"}),
    (
        "engram_cache_rows",
        "Rows in memory, and room for rows.",
        "kind",
        {"held": "cached_rows", "room": "cache_slots", "lookahead": "lookahead_held_rows"},
    ),
)
# Bounds of the exported histograms in seconds: 12 bounds from 16 us, each 3 times the one before.
_BOUNDS_S = tuple(16e-6 * 3**step for step in range(12))


class RowStoreCollector(Collector):
    """registry.register(RowStoreCollector(store)); all metrics carry `labels`, such as the rank."""

    def __init__(self, store: RowStore, labels: dict[str, str] | None = None) -> None:
        self._store = store
        self._labels = labels or {}

    def collect(self) -> Iterator[Metric]:
        counters = self._store.counters()
        for name, text, label, sources in _COUNTERS:
            yield self._fill(
                CounterMetricFamily(name, text, labels=self._names(label)), counters, label, sources
            )
        for name, text, label, sources in _GAUGES:
            yield self._fill(
                GaugeMetricFamily(name, text, labels=self._names(label)), counters, label, sources
            )
        yield self._histogram("engram_read_seconds", "One disk read.", counters.read_latency)
        yield self._histogram(
            "engram_request_seconds", "One decode submit, call to last row.", counters.request_latency
        )

    def _names(self, label: str) -> list[str]:
        return [*self._labels, *([label] if label else [])]

    def _fill(
        self,
        family: CounterMetricFamily | GaugeMetricFamily,
        counters: StoreCounters,
        label: str,
        sources: dict[str, str],
    ) -> Metric:
        for value, field in sources.items():
            family.add_metric([*self._labels.values(), *([value] if label else [])], getattr(counters, field))
        return family

    def _histogram(self, name: str, text: str, histogram: LatencyHistogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        buckets = [
            (
                f"{bound:g}",
                float(sum(count for upper_ns, count in histogram.buckets if upper_ns <= bound * 1e9)),
            )
            for bound in _BOUNDS_S
        ]
        family.add_metric(
            list(self._labels.values()), [*buckets, ("+Inf", float(histogram.count))], histogram.sum_ns / 1e9
        )
        return family

"""Counters as Prometheus metrics: names, labels and values of a real scrape."""

from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engram.metrics import RowStoreCollector
from engram.row_counters import LatencyHistogram
from tests.engram.packed_folder import write_packed_folder
from tests.engram.test_row_store import open_folder


def test_a_scrape_shows_the_counters(tmp_path: Path) -> None:
    folder = write_packed_folder(tmp_path, layer_ids=(1,))
    registry = CollectorRegistry()
    with open_folder(folder, cache_bytes=1_000_000) as store:
        registry.register(RowStoreCollector(store, labels={"rank": "0"}))
        ids = folder.owned_ids(1)[:300]
        store.read_rows(1, ids)
        store.read_rows(1, ids)
        counters = store.counters()
        text = generate_latest(registry).decode()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    rank = ("rank", "0")
    assert samples["engram_rows_total", (rank, ("source", "memory"))] == counters.hit_rows >= 300
    assert samples["engram_rows_total", (rank, ("source", "disk"))] == counters.missed_rows
    assert samples["engram_pages_read_total", (("purpose", "request"), rank)] == counters.pages
    assert samples["engram_read_bytes_total", (rank,)] == counters.read_bytes
    assert samples["engram_requests_total", (rank, ("state", "failed"))] == 0
    assert samples["engram_cache_rows", (("kind", "held"), rank)] == counters.cached_rows
    assert samples["engram_read_seconds_count", (rank,)] == counters.reads
    buckets = [value for (name, _), value in samples.items() if name == "engram_read_seconds_bucket"]
    assert buckets == sorted(buckets) and buckets[-1] == counters.reads


def test_quantiles() -> None:
    histogram = LatencyHistogram(buckets=((1000, 50), (2000, 49), (9000, 1)), sum_ns=0)
    assert histogram.quantile_s(0.5) == 1e-6
    assert histogram.quantile_s(0.99) == 2e-6
    assert histogram.quantile_s(1.0) == 9e-6
    assert LatencyHistogram(buckets=(), sum_ns=0).quantile_s(0.5) == 0.0
    assert np.isclose(histogram.count, 100)

"""Engram's numbers in SGLang's own /metrics: prometheus-client values of the scheduler process.

SGLang collects them over PROMETHEUS_MULTIPROC_DIR, so they are plain counters and gauges, brought up to date
about once a second by whoever sends outputs; nothing here waits for the GPU.
"""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from engram.row_counters import LatencyHistogram, StoreCounters
from sgl_ext.engram.row_service import RowService

if TYPE_CHECKING:
    from sgl_ext.engram.step_fetch import StepFetch

_PERIOD_S = 1.0
# Steps of a CPU engine last that long, and answers of a small model less than a second.
CPU_PERIOD_S = 0.05
_WAIT_BOUNDS_US = (2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 4000)
_GAUGES = (
    "cached_rows",
    "cache_slots",
    "reads_in_flight",
    "lookahead_reads_in_flight",
    "queued_requests",
    "lookahead_held_rows",
)


class EngramMetrics:
    """Counters sparkctl_engram_*; labels tp_rank, and layer or le (microseconds) where it applies.

    A CPU engine has no step fetch and no stager: it reads in place, and has the row store's numbers only.
    """

    def __init__(self, service: RowService, period_s: float = _PERIOD_S) -> None:
        # Imported here: prometheus-client looks at PROMETHEUS_MULTIPROC_DIR once, at its own import.
        from prometheus_client import Counter, Gauge

        self._service = service
        self._rank = str(service.rank)
        self._period_s = period_s
        self._next_s = 0.0
        self._before: dict[tuple[str, ...], int] = {}
        self._values: dict[str, Any] = {}
        for field in fields(StoreCounters):
            if field.name in _GAUGES:
                self._values[field.name] = Gauge(
                    f"sparkctl_engram_{field.name}",
                    f"Row store: {field.name}.",
                    ["tp_rank"],
                    multiprocess_mode="mostrecent",
                )
            elif field.name.endswith("_latency"):
                self._values[field.name] = Gauge(
                    f"sparkctl_engram_{field.name}_seconds",
                    f"Row store: {field.name} since start.",
                    ["tp_rank", "quantile"],
                    multiprocess_mode="mostrecent",
                )
            else:
                self._values[field.name] = Counter(
                    f"sparkctl_engram_{field.name}", f"Row store: {field.name}.", ["tp_rank"]
                )
        if service.step_fetch is not None:
            self._make_gpu_values(service.step_fetch)

    def _make_gpu_values(self, fetch: StepFetch) -> None:
        from prometheus_client import Counter, Gauge

        self._waits = Counter(
            "sparkctl_engram_exposed_wait_steps",
            "Decode and verify steps by how long the model waited for a layer's rows (microseconds).",
            ["tp_rank", "layer", "le"],
        )
        self._tracked = Gauge(
            "sparkctl_engram_lookahead_requests",
            "Queued requests read ahead.",
            ["tp_rank"],
            multiprocess_mode="mostrecent",
        )
        self._host_waits = torch.zeros(fetch.waits.shape, dtype=torch.int32, pin_memory=True)
        self._stream = torch.cuda.Stream(fetch.waits.device)
        self._copied: torch.cuda.Event | None = None

    def publish(self) -> None:
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + self._period_s
        counters = self._service.store.counters()
        for name, value in self._values.items():
            current = getattr(counters, name)
            if isinstance(current, LatencyHistogram):
                for quantile in (0.5, 0.95, 0.99):
                    value.labels(self._rank, str(quantile)).set(current.quantile_s(quantile))
            elif name in _GAUGES:
                value.labels(self._rank).set(current)
            else:
                self._count(value.labels(self._rank), (name,), current)
        if self._service.step_fetch is not None:
            self._tracked.labels(self._rank).set(self._service.stager.lookahead.num_tracked)
            self._publish_waits()

    def _publish_waits(self) -> None:
        """Publishes the histogram that the last call asked for, and asks for the next one."""
        if self._copied is not None:
            if not self._copied.query():
                return
            for layer, histogram in enumerate(self._host_waits.tolist()):
                layer_id = str(self._service.tables[layer].layer_id)
                for bound in _WAIT_BOUNDS_US:
                    seen = sum(histogram[: bound + 1])
                    self._count(
                        self._waits.labels(self._rank, layer_id, str(bound)), (layer_id, str(bound)), seen
                    )
                self._count(
                    self._waits.labels(self._rank, layer_id, "inf"), (layer_id, "inf"), sum(histogram)
                )
        with torch.cuda.stream(self._stream):
            self._host_waits.copy_(self._service.step_fetch.waits, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(self._stream)

    def _count(self, counter: Any, key: tuple[str, ...], current: int) -> None:
        counter.inc(current - self._before.get(key, 0))
        self._before[key] = current

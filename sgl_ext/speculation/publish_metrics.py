"""Speculation's numbers in SGLang's own /metrics, brought up to date about once a second.

SGLang collects prometheus-client values of all processes over PROMETHEUS_MULTIPROC_DIR. Only rank 0 counts:
the other ranks decide and accept the same.
"""

from __future__ import annotations

import time
from typing import Any

from sgl_ext.speculation.metrics import MetricFamily
from sgl_ext.speculation.rank_speculation import RankSpeculation

_PERIOD_S = 1.0


class MetricsPublisher:
    def __init__(self, rank: RankSpeculation) -> None:
        # Imported here: prometheus-client looks at PROMETHEUS_MULTIPROC_DIR once, at its own import.
        from prometheus_client import Counter, Gauge

        self._rank = rank
        self._next_s = 0.0
        self._before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._values: dict[str, Any] = {}
        self._targets: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}  # with labels: looked up once
        for family in rank.metrics.families():
            labels = [name for name, _ in family.samples[0][0]]
            if family.kind == "counter":
                self._values[family.name] = Counter(family.name, family.text, labels)
            else:
                self._values[family.name] = Gauge(
                    family.name, family.text, labels, multiprocess_mode="mostrecent"
                )
        tuned = Gauge(
            "sparkctl_spec_tuned",
            "1 where widths are decided from a cost table.",
            multiprocess_mode="mostrecent",
        )
        tuned.set(rank.is_tuned)
        self._publish()

    def publish(self) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + _PERIOD_S
            self._publish()

    def _publish(self) -> None:
        for family in self._rank.metrics.families():
            for labels, value in family.samples:
                self._set(family, labels, value)

    def _set(self, family: MetricFamily, labels: tuple[tuple[str, str], ...], value: float) -> None:
        key = family.name, labels
        target = self._targets.get(key)
        if target is None:
            target = self._values[family.name]
            if labels:
                target = target.labels(*(text for _, text in labels))
            self._targets[key] = target
        before = self._before.get(key)
        if value == before:  # most are, from one second to the next
            return
        self._before[key] = value
        if family.kind == "counter":
            target.inc(value - (before or 0.0))
        else:
            target.set(value)

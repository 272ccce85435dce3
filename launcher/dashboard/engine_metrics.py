"""Pure: one scrape of an engine's /metrics as typed values. What the engine does not give stays None.

The names are those of SGLang 0.5.23 (srt/observability/metrics_collector.py) and of the plugin
(sgl_ext/engram/metrics.py, sgl_ext/speculation/metrics.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """One scrape of all nodes of a run. Totals count since the engine's start.

    `waits`: Engram steps by the longest wait they had, upper bound in microseconds -> steps so far, added up
    over ranks and layers; empty where rows are not read from disk by a GPU. `draft_break_even`: tokens a step
    must bring, and what follows it, where the plugin decides about drafts.
    """

    at_s: float
    tokens_per_s: float | None = None
    decode_tokens: float | None = None
    prefill_tokens: float | None = None
    tokens_per_step: float | None = None
    kv_usage: float | None = None
    kv_used_tokens: float | None = None
    kv_tokens: float | None = None
    running: float | None = None
    queued: float | None = None
    prefix_hit_share: float | None = None
    engram_rows: float | None = None
    engram_hit_rows: float | None = None
    draft_break_even: float | None = None
    draft_below_break_even: float | None = None
    draft_requests_off: float | None = None
    waits: Mapping[float, float] = field(default_factory=dict)


Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]

# How values of several ranks become one. A pool is as full as its fullest rank; ranks of data parallelism
# have requests and tokens of their own.
_SUMS = {
    "tokens_per_s": "sglang:gen_throughput",
    "kv_used_tokens": "sglang:num_used_tokens",
    "running": "sglang:num_running_reqs",
    "queued": "sglang:num_queue_reqs",
    "engram_rows": "sparkctl_engram_rows_total",
    "engram_hit_rows": "sparkctl_engram_hit_rows_total",
}
_LARGEST = {
    "kv_usage": "sglang:token_usage",
    "prefix_hit_share": "sglang:cache_hit_rate",
    "tokens_per_step": "sglang:spec_accept_length",
    "draft_break_even": "sparkctl_spec_break_even_recent",
    "draft_below_break_even": "sparkctl_spec_below_break_even",
    "draft_requests_off": "sparkctl_spec_requests_off",
}
_TOKENS = "sglang:realtime_tokens_total"
_POOL = "sglang:max_total_num_tokens"
_WAITS = "sparkctl_engram_exposed_wait_steps_total"


def read_sample(at_s: float, head_text: str, worker_texts: Iterable[str] = ()) -> EngineSample:
    """`worker_texts` add what each rank measures for itself: the Engram counters.

    Raises ValueError when a text is no Prometheus exposition.
    """
    head = parse_exposition(head_text)
    engram = [head, *(parse_exposition(text) for text in worker_texts)]
    values: dict[str, float | None] = {}
    for name, metric in _SUMS.items():
        sources = engram if name.startswith("engram") else [head]
        values[name] = _sum(value for source in sources for _, value in source.get(metric, ()))
    for name, metric in _LARGEST.items():
        values[name] = max((value for _, value in head.get(metric, ())), default=None)
    # 0 until a draft was verified, and for ever where nothing drafts: a step gives at least one token.
    values["tokens_per_step"] = values["tokens_per_step"] or None
    values["draft_break_even"] = values["draft_break_even"] or None
    values["decode_tokens"] = _sum(_mode(head, "decode"))
    values["prefill_tokens"] = _sum(_mode(head, "prefill_compute"))
    values["kv_tokens"] = _pool_tokens(head)
    return EngineSample(at_s=at_s, waits=_waits(engram), **values)


def parse_exposition(text: str) -> Samples:
    """Metric name -> its label sets and values. Raises ValueError, also for a text that was cut off."""
    from prometheus_client.parser import text_string_to_metric_families

    if text and not text.endswith("\n"):
        raise ValueError("/metrics must end with a line end; it was cut off")
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    found.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        # The parser says whatever its string handling runs into.
        raise ValueError(f"/metrics must be Prometheus text, got what fails with: {error}") from error
    return found


def _sum(values: Iterable[float]) -> float | None:
    listed = list(values)
    return math.fsum(listed) if listed else None


def _mode(samples: Samples, mode: str) -> Iterable[float]:
    return (value for labels, value in samples.get(_TOKENS, ()) if labels.get("mode") == mode)


def _pool_tokens(head: Samples) -> float | None:
    """Ranks of one replica hold the same tokens; replicas (dp_rank) hold their own."""
    pools: dict[str, float] = {}
    for labels, value in head.get(_POOL, ()):
        replica = labels.get("dp_rank", "")
        pools[replica] = min(value, pools.get(replica, value))
    return _sum(pools.values())


def _waits(sources: Iterable[Samples]) -> dict[float, float]:
    waits: dict[float, float] = {}
    for source in sources:
        for labels, value in source.get(_WAITS, ()):
            bound = _bound(labels.get("le", ""))
            if bound is not None:
                waits[bound] = waits.get(bound, 0.0) + value
    return dict(sorted(waits.items()))


def _bound(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

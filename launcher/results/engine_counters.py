"""What the engine's own counters grew by in each round: SGLang's /metrics, and those of sparkctl's plugin."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from launcher.results.records import EngineSample

_SERIES = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCounters:
    """None: the engine has no such counter (no speculation, no Engram, another engine)."""

    decode_passes: float | None
    decode_tokens: float | None
    generated_tokens: float | None
    verify_calls: float | None
    engram_rows: float | None
    engram_hit_rows: float | None


def round_counters(
    samples: Iterable[EngineSample],
) -> Iterator[tuple[tuple[str, str, str, int], int, RoundCounters]]:
    """(cell, round, growth) of every round that has a sample before and one after it; warm-up has its own."""
    pairs: dict[tuple[tuple[str, str, str, int], int], dict[str, EngineSample]] = defaultdict(dict)
    for sample in samples:
        cell = (sample.protocol, sample.suite, sample.case, sample.concurrency)
        pairs[(cell, sample.round)][sample.when] = sample
    for (cell, round_idx), pair in sorted(pairs.items(), key=lambda item: item[0]):
        if len(pair) == 2:
            yield cell, round_idx, _growth(pair["before"].metrics, pair["after"].metrics)


def _growth(before: Mapping[str, float], after: Mapping[str, float]) -> RoundCounters:
    start, end = _by_name(before), _by_name(after)

    def grew(name: str, **labels: tuple[str, ...]) -> float | None:
        """Summed over label sets of one rank, the largest of the ranks: they all do the same steps."""
        ranks: dict[str, float] = defaultdict(float)
        for series, value in end.get(name, {}).items():
            own = dict(series)
            if all(own.get(label) in wanted for label, wanted in labels.items()):
                ranks[own.get("tp_rank", "")] += value - start.get(name, {}).get(series, 0.0)
        return max(ranks.values()) if ranks else None

    def grew_over_ranks(name: str) -> float | None:
        """Each rank reads rows of its own."""
        series = end.get(name, {})
        if not series:
            return None
        return sum(value - start.get(name, {}).get(labels, 0.0) for labels, value in sorted(series.items()))

    hit_rows = grew_over_ranks("sparkctl_engram_hit_rows_total")
    return RoundCounters(
        decode_passes=grew("sglang:cuda_graph_passes_total", mode=("decode_none", "decode_cuda_graph")),
        decode_tokens=grew("sglang:realtime_tokens_total", mode=("decode",)),
        generated_tokens=grew("sglang:generation_tokens_total"),
        verify_calls=grew("sglang:spec_verify_calls_total"),
        engram_rows=grew_over_ranks("sparkctl_engram_rows_total"),
        engram_hit_rows=hit_rows,
    )


def _by_name(metrics: Mapping[str, float]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    for series, value in metrics.items():
        match = _SERIES.fullmatch(series)
        if match:
            labels = tuple(sorted(_LABEL.findall(match[2] or "")))
            found[match[1]][labels] = value
    return found

"""Raw records -> summary. Pure and deterministic: the same records in any order give the same bytes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from launcher.results.engine_counters import RoundCounters, round_counters
from launcher.results.records import EngineSample, NodeSample, RequestRecord
from launcher.results.summary import CellSummary, NodeSummary, Percentiles, Spread, Summary

CellKey = tuple[str, str, str, int]
# A millionth of a second, or of a token: far below what any clock here resolves.
DIGITS = 6


def summarize(
    requests: Iterable[RequestRecord],
    engine_samples: Iterable[EngineSample] = (),
    node_samples: Iterable[NodeSample] = (),
) -> Summary:
    """Warm-up is counted as discarded and used for nothing else; a failed request counts in `failed` only."""
    by_cell: dict[CellKey, list[RequestRecord]] = defaultdict(list)
    for record in requests:
        by_cell[(record.protocol, record.suite, record.case, record.concurrency)].append(record)
    counters: dict[CellKey, dict[int, RoundCounters]] = defaultdict(dict)
    for key, round_idx, found in round_counters(engine_samples):
        counters[key][round_idx] = found
    return Summary(
        cells=tuple(_summarize_cell(key, by_cell[key], counters[key]) for key in sorted(by_cell)),
        nodes=_summarize_nodes(node_samples),
    )


def _summarize_cell(
    key: CellKey, records: Sequence[RequestRecord], counters: dict[int, RoundCounters]
) -> CellSummary:
    measured = [record for record in records if not record.warm_up]
    answered = sorted(
        (record for record in measured if record.error is None), key=lambda record: record.request_id
    )
    rounds: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in answered:
        rounds[record.round].append(record)

    def spread(measure: Callable[[Sequence[RequestRecord]], float | None]) -> Spread | None:
        return make_spread(measure(rounds[round_idx]) for round_idx in sorted(rounds))

    def counted(measure: Callable[[RoundCounters, float | None], float | None]) -> Spread | None:
        return make_spread(
            measure(counters[round_idx], _decode_window_s(rounds[round_idx]))
            for round_idx in sorted(rounds)
            if round_idx in counters
        )

    checked = [record.passed for record in measured if record.passed is not None]
    protocol, suite, case, concurrency = key
    return CellSummary(
        protocol=protocol,
        suite=suite,
        case=case,
        concurrency=concurrency,
        rounds=len({record.round for record in measured}),
        requests=len(measured),
        failed=len(measured) - len(answered),
        discarded=len(records) - len(measured),
        checked=len(checked),
        passed=sum(checked),
        prompt_tokens=spread(lambda batch: _median_of(batch, lambda r: r.prompt_tokens)),
        cached_tokens=spread(lambda batch: _median_of(batch, lambda r: r.cached_tokens)),
        completion_tokens=spread(lambda batch: _median_of(batch, lambda r: r.completion_tokens)),
        request_tokens_per_s=spread(lambda batch: _median_of(batch, decode_tokens_per_s)),
        aggregate_tokens_per_s=spread(_aggregate_tokens_per_s),
        prefill_tokens_per_s=spread(lambda batch: _median_of(batch, _prefill_tokens_per_s)),
        ttft_s=make_percentiles(ttft_s(record) for record in answered),
        ttft_round_s=spread(lambda batch: _median_of(batch, ttft_s)),
        itl_s=make_percentiles(_itl_s(record) for record in answered),
        chunk_gap_s=make_percentiles(gap for record in answered for gap in chunk_gaps_s(record)),
        steps_per_s=counted(lambda found, window_s: _ratio(found.decode_passes, window_s)),
        tokens_per_step=counted(lambda found, _: _ratio(found.decode_tokens, found.decode_passes)),
        accepted_per_step=counted(lambda found, _: _ratio(found.generated_tokens, found.verify_calls)),
        engram_hit_rate=counted(lambda found, _: _engram_hit_rate(found)),
        engram_cold_hit_rate=make_spread(
            _engram_hit_rate(counters[round_idx])
            for round_idx in sorted({record.round for record in records if record.warm_up} & set(counters))
        ),
    )


def _engram_hit_rate(found: RoundCounters) -> float | None:
    return _ratio(found.engram_hit_rows, found.engram_rows)


def ttft_s(record: RequestRecord) -> float | None:
    return None if record.first_token_s is None else record.first_token_s - record.start_s


def chunk_gaps_s(record: RequestRecord) -> list[float]:
    return [later - earlier for earlier, later in pairwise(record.chunk_times_s)]


def decode_tokens_per_s(record: RequestRecord) -> float | None:
    if record.first_token_s is None:
        return None
    return _ratio(_decode_tokens(record), record.last_chunk_s - record.first_token_s)


def _itl_s(record: RequestRecord) -> float | None:
    if record.first_token_s is None:
        return None
    return _ratio(record.last_chunk_s - record.first_token_s, _decode_tokens(record))


def _prefill_tokens_per_s(record: RequestRecord) -> float | None:
    return _ratio((record.prompt_tokens or 0) - (record.cached_tokens or 0), ttft_s(record))


def _decode_tokens(record: RequestRecord) -> int:
    """The first token belongs to the prefill."""
    return max(0, (record.completion_tokens or 0) - 1)


def _decode_window_s(batch: Sequence[RequestRecord]) -> float | None:
    firsts = [record.first_token_s for record in batch if record.first_token_s is not None]
    if not firsts:
        return None
    return max(record.last_chunk_s for record in batch) - min(firsts)


def _aggregate_tokens_per_s(batch: Sequence[RequestRecord]) -> float | None:
    return _ratio(sum(_decode_tokens(record) for record in batch), _decode_window_s(batch))


def _median_of(
    batch: Sequence[RequestRecord], measure: Callable[[RequestRecord], float | None]
) -> float | None:
    values = [value for record in batch if (value := measure(record)) is not None]
    return _quantile(sorted(values), 0.5) if values else None


def make_spread(values: Iterable[float | None]) -> Spread | None:
    """None where no round carries the value."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Spread(
        median=_rounded(_quantile(known, 0.5)),
        min=_rounded(known[0]),
        max=_rounded(known[-1]),
        rounds=len(known),
    )


def make_percentiles(values: Iterable[float | None]) -> Percentiles | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p90, p99 = (_rounded(_quantile(known, share)) for share in (0.5, 0.9, 0.99))
    return Percentiles(p50=p50, p90=p90, p99=p99, count=len(known))


def _quantile(ascending: Sequence[float], share: float) -> float:
    """Linear between the two neighbours, as numpy's default."""
    position = share * (len(ascending) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (position - below)


def _ratio(part: float | None, whole: float | None) -> float | None:
    """None where either is unknown, or nothing was counted."""
    if part is None or whole is None or whole <= 0:
        return None
    return part / whole


def _rounded(value: float) -> float:
    return round(float(value), DIGITS)


def _summarize_nodes(samples: Iterable[NodeSample]) -> tuple[NodeSummary, ...]:
    by_node: dict[str, list[NodeSample]] = defaultdict(list)
    for sample in samples:
        by_node[sample.node].append(sample)
    found = []
    for node in sorted(by_node):
        own = by_node[node]
        clocks = [sample.gpu_clock_mhz for sample in own if sample.gpu_clock_mhz is not None]
        heats = [sample.gpu_temperature_c for sample in own if sample.gpu_temperature_c is not None]
        powers = [sample.gpu_power_w for sample in own if sample.gpu_power_w is not None]
        memory = [
            sample.memory_available_bytes for sample in own if sample.memory_available_bytes is not None
        ]
        found.append(
            NodeSummary(
                node=node,
                samples=len(own),
                gpu_clock_mhz_min=min(clocks, default=None),
                gpu_clock_mhz_max=max(clocks, default=None),
                gpu_temperature_c_max=max(heats, default=None),
                gpu_power_w_max=max(powers, default=None),
                memory_available_bytes_min=min(memory, default=None),
            )
        )
    return tuple(found)

"""Figures of a summary against values computed by hand."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from launcher.results.records import RequestRecord
from launcher.results.summarize import summarize
from launcher.results.summary import CellSummary, summary_text
from tests.launcher.results.make_run import make_engine_samples, make_request, make_requests


def only_cell(records: list[RequestRecord]) -> CellSummary:
    (cell,) = summarize(records).cells
    return cell


def test_one_request() -> None:
    """100 prompt tokens in 0.5 s, then ten tokens after the first in one second."""
    cell = only_cell([make_request(cached_tokens=20)])
    assert cell.request_tokens_per_s is not None and cell.request_tokens_per_s.median == 10.0
    assert cell.aggregate_tokens_per_s is not None and cell.aggregate_tokens_per_s.median == 10.0
    assert cell.prefill_tokens_per_s is not None and cell.prefill_tokens_per_s.median == 160.0
    assert cell.ttft_s is not None and cell.ttft_s.p50 == 0.5
    assert cell.itl_s is not None and cell.itl_s.p99 == 0.1
    assert cell.chunk_gap_s is not None and (cell.chunk_gap_s.p50, cell.chunk_gap_s.count) == (0.2, 5)


def test_tokens_are_counted_by_usage_not_by_chunks() -> None:
    """The same six chunks carry 11 or 21 tokens."""
    few, many = (only_cell([make_request(tokens=tokens)]) for tokens in (11, 21))
    assert few.request_tokens_per_s is not None and many.request_tokens_per_s is not None
    assert many.request_tokens_per_s.median == 2 * few.request_tokens_per_s.median


def test_streams_of_a_round_count_from_the_first_token_to_the_last_chunk() -> None:
    """Two streams half a second apart: 20 tokens in 1.5 s, each stream at its own 10 tokens/s."""
    records = [
        make_request("a", start_s=1.0, concurrency=2),
        make_request("b", start_s=1.5, concurrency=2),
    ]
    cell = only_cell(records)
    assert cell.aggregate_tokens_per_s is not None
    assert cell.aggregate_tokens_per_s.median == pytest.approx(20 / 1.5, abs=1e-6)
    assert cell.request_tokens_per_s is not None and cell.request_tokens_per_s.median == 10.0


def test_warm_up_and_failures_count_for_nothing() -> None:
    good = [make_request("good", round=1)]
    others = [
        make_request("warm", round=0, warm_up=True, speed=9.0),
        make_request("lost", round=1, error="connection reset", completion_tokens=None, speed=5.0),
    ]
    cell, alone = only_cell([*good, *others]), only_cell(good)
    assert (cell.requests, cell.failed, cell.discarded, cell.rounds) == (2, 1, 1, 1)
    for name in ("request_tokens_per_s", "aggregate_tokens_per_s", "ttft_s", "itl_s", "chunk_gap_s"):
        assert getattr(cell, name) == getattr(alone, name)


def test_a_case_without_any_answer_has_no_figures() -> None:
    cell = only_cell([make_request(error="HTTP 500", completion_tokens=None)])
    assert cell.failed == 1
    assert cell.request_tokens_per_s is None and cell.ttft_s is None and cell.steps_per_s is None


def test_median_and_spread_are_over_rounds() -> None:
    records = [
        make_request(f"r{number}", round=number, speed=speed) for number, speed in enumerate((1, 4, 2))
    ]
    cell = only_cell(records)
    spread = cell.request_tokens_per_s
    assert spread is not None
    assert (spread.median, spread.min, spread.max, spread.rounds) == (20.0, 10.0, 40.0, 3)


def test_percentiles_are_those_of_the_standard_library() -> None:
    draw = random.Random(3)
    speeds = [draw.uniform(0.5, 3.0) for _ in range(101)]
    cell = only_cell([make_request(f"r{number}", speed=speed) for number, speed in enumerate(speeds)])
    cuts = statistics.quantiles([0.5 / speed for speed in speeds], n=100, method="inclusive")
    assert cell.ttft_s is not None
    for share, cut in ((cell.ttft_s.p50, 49), (cell.ttft_s.p90, 89), (cell.ttft_s.p99, 98)):
        assert math.isclose(share, cuts[cut], abs_tol=2e-6)


def test_engine_counters_grow_between_before_and_after() -> None:
    """Ten passes and ten tokens in one second; 15 of 20 rows a rank from memory."""
    summary = summarize([make_request(round=1)], make_engine_samples())
    (cell,) = summary.cells
    assert cell.tokens_per_step is not None and cell.tokens_per_step.median == 1.0
    assert cell.steps_per_s is not None and cell.steps_per_s.median == 10.0
    assert cell.engram_hit_rate is not None and cell.engram_hit_rate.median == 0.75
    assert cell.accepted_per_step is None, "no speculation, so nothing was accepted"


def test_the_discarded_round_gives_the_cold_hit_rate_and_nothing_else() -> None:
    """Its samples are a quarter of the rows; the counted round's are three quarters."""
    requests = [make_request("cold", round=0, warm_up=True), make_request(round=1)]
    cold = []
    for sample in make_engine_samples(round=0, warm_up=True):
        hits = {name: value / 3 for name, value in sample.metrics.items() if "hit_rows" in name}
        cold.append(sample.model_copy(update={"metrics": {**sample.metrics, **hits}}))
    (cell,) = summarize(requests, [*cold, *make_engine_samples()]).cells
    assert cell.engram_cold_hit_rate is not None and cell.engram_cold_hit_rate.median == 0.25
    assert cell.engram_hit_rate is not None and cell.engram_hit_rate.median == 0.75
    assert cell.steps_per_s is not None and cell.steps_per_s.rounds == 1


def test_accepted_tokens_need_verify_calls() -> None:
    before, after = make_engine_samples()
    more = {"sglang:generation_tokens_total{}": 30.0, "sglang:spec_verify_calls_total{}": 10.0}
    zero = dict.fromkeys(more, 0.0)
    pair = [
        before.model_copy(update={"metrics": {**before.metrics, **zero}}),
        after.model_copy(update={"metrics": {**after.metrics, **more}}),
    ]
    (cell,) = summarize([make_request(round=1)], pair).cells
    assert cell.accepted_per_step is not None and cell.accepted_per_step.median == 3.0


def test_the_order_of_records_changes_nothing() -> None:
    records = make_requests()
    expected = summary_text(summarize(records, make_engine_samples()))
    draw = random.Random(5)
    for _ in range(5):
        draw.shuffle(records)
        assert summary_text(summarize(records, reversed(make_engine_samples()))) == expected


def test_known_answers_are_counted() -> None:
    records = [
        make_request(f"n{number}", passed=passed) for number, passed in enumerate((True, False, True, None))
    ]
    cell = only_cell(records)
    assert (cell.checked, cell.passed) == (3, 2)


def test_cells_are_sorted_and_none_is_mixed() -> None:
    keys = [cell.key for cell in summarize(make_requests()).cells]
    assert keys == sorted(keys) and len(keys) == 4
    assert keys == list(itertools.product(["sparkctl"], ["decode"], ["code", "prose"], [1, 2]))

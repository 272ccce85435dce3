"""The gap between a draft block and its Engram hash, from traces in the profiler's format."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DRAFT, OWN, VERIFY = 0, 1, 2  # launches of one step, added to ten times its number


@pytest.fixture
def draft_gap(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "draft_gap", raising=False)
    import draft_gap  # type: ignore[import-not-found]  # the scripts import each other by bare name

    return draft_gap  # type: ignore[no-any-return]


def make_step(number: int, *, eager_us: float = 20, hash_delay_us: float = 5) -> list[dict[str, Any]]:
    """A step of two Engram layers; times in the comments are from the last token's end."""
    base = 10_000.0 * number
    launch = 10 * number

    def work(name: str, start: float, us: float, part: int, cat: str = "kernel") -> dict[str, Any]:
        args = {"correlation": launch + part, "stream": 7}
        return {"name": name, "cat": cat, "ts": base + start, "dur": us, "ph": "X", "args": args}

    verify = 10 + eager_us
    hashed = verify + hash_delay_us
    return [
        *(work("_markov_sample_finish_kernel", 40 * step - 200, 10, DRAFT) for step in range(4)),
        work("_markov_sample_finish_kernel", -10, 10, DRAFT),  # ends at 0
        work("void at::native::CatArrayBatchedCopy<long>", 1, 2, DRAFT),
        work("Memcpy DtoD (Device -> Device)", 4, 2, DRAFT, "gpu_memcpy"),  # block written at 6
        work("confidence_gemm", 7, 3, DRAFT),  # draft ends at 10
        work("void at::native::CatArrayBatchedCopy<long>", 12, 2, OWN),
        work("verify_metadata", verify, 2, VERIFY),
        work("_engram_hash_kernel", hashed, 4, VERIFY),
        work("_export_ids_kernel", hashed + 6, 2, VERIFY),  # ids on the host 8 after the hash began
        work("_stamp_kernel", hashed + 100, 1, VERIFY),
        work("_dequantise_kernel", hashed + 104, 3, VERIFY),  # waited 3
        work("_stamp_kernel", hashed + 300, 1, VERIFY),
        work("_dequantise_kernel", hashed + 302, 3, VERIFY),  # waited 1
        work("cudaGraphLaunch", -60, 50, VERIFY, "cuda_runtime"),  # ended 10 before the block existed
    ]


def test_parts_of_the_gap_add_up(draft_gap: ModuleType) -> None:
    found = draft_gap.measure_gaps([event for number in range(1, 4) for event in make_step(number)], 2)
    assert found["steps"] == 3
    row = found["rows"][0]
    assert (row["gap_us"], row["written_us"]) == (35, 6)
    assert (row["draft_rest_us"], row["own_launches_us"], row["verify_before_hash_us"]) == (10, 20, 5)
    assert row["draft_rest_us"] + row["own_launches_us"] + row["verify_before_hash_us"] == row["gap_us"]
    assert row["idle_us"] == 35 - (2 + 2 + 3 + 2 + 2)
    assert row["verify_launched_before_block_us"] == 10
    assert row["ids_on_host_us"] == 8
    assert [layer["slack_us"] for layer in row["layers"]] == [92, 292]
    assert [layer["waited_us"] for layer in row["layers"]] == [3, 1]
    parts = [(row["part"], row["name"]) for row in found["between_median_step"]]
    assert [part for part, _ in parts] == ["draft graph"] * 3 + ["own launch", "verify graph"]
    assert found["period_us"]["us"]["p50"] == 10_000


def test_a_hash_at_the_graphs_head_is_ahead_of_the_model(draft_gap: ModuleType) -> None:
    """Reads that start first: the metadata and the embedding come behind the hash, in the same launch."""
    step = make_step(1, hash_delay_us=0)
    hash_start = next(event["ts"] for event in step if event["name"] == "_engram_hash_kernel")
    launch = next(event["args"] for event in step if event["name"] == "_engram_hash_kernel")
    embedded = {"cat": "kernel", "ph": "X", "name": "_hc_broadcast_kernel", "dur": 2, "args": launch}
    early = [event for event in step if event["name"] != "verify_metadata"]
    early.append(embedded | {"ts": hash_start + 55})
    early.append(embedded | {"ts": hash_start + 20, "args": {"correlation": 99}})  # of another launch
    (row,) = draft_gap.measure_gaps(early, 2)["rows"]
    assert row["verify_before_hash_us"] == 0
    assert row["hash_before_model_us"] == 57
    assert row["reads_after_block_us"] == row["gap_us"] + 8
    (late,) = draft_gap.measure_gaps(step, 2)["rows"]
    assert late["hash_before_model_us"] == 0


def test_recorded_traces_had_the_models_own_hash(draft_gap: ModuleType) -> None:
    """Of two H200, before reads started at the graph's head."""
    path = BENCHMARKS.parent / "results/gpu-h200-2026-11-30-two/draft-gap-batch-8-slice.json.gz"
    with gzip.open(path, "rt") as file:
        found = draft_gap.measure_gaps(json.load(file)["traceEvents"], 2)
    whole = [row for row in found["rows"] if "layers" in row]
    assert whole and all(row["hash_before_model_us"] == 0 for row in whole)
    assert all(row["reads_after_block_us"] > 70 for row in whole)


def test_the_median_step_is_shown(draft_gap: ModuleType) -> None:
    steps = [make_step(1, eager_us=20), make_step(2, eager_us=500), make_step(3, eager_us=40)]
    found = draft_gap.measure_gaps([event for step in steps for event in step], 2)
    assert found["median"]["gap_us"] == {"p50": 55, "min": 35, "max": 515}
    assert found["between_median_step"][-1]["start_us"] == 50
    (own,) = [row for row in found["by_name"] if row["part"] == "own launch"]
    assert (own["calls"], own["us"]) == (1, 2)


def test_a_prompts_hash_is_no_step(draft_gap: ModuleType) -> None:
    prompt = [event for event in make_step(1) if "markov" not in event["name"]]
    assert "no _engram_hash_kernel after a draft" in draft_gap.measure_gaps(prompt, 2)["error"]
    assert draft_gap.measure_gaps(prompt + make_step(2), 2)["steps"] == 1


def test_a_step_at_the_traces_end_has_no_layers(draft_gap: ModuleType) -> None:
    cut = [event for event in make_step(1) if "dequantise" not in event["name"]]
    (row,) = draft_gap.measure_gaps(cut, 2)["rows"]
    assert row["cut_off"] and row["gap_us"] == 35 and "layers" not in row


def test_the_slice_is_read_like_the_trace(draft_gap: ModuleType, tmp_path: Path) -> None:
    events = [event for number in range(1, 9) for event in make_step(number)]
    events.append({"name": "process_name", "ph": "M"})
    draft_gap.write_slice(events, tmp_path / "slice.json.gz")
    with gzip.open(tmp_path / "slice.json.gz", "rt") as file:
        kept = json.load(file)["traceEvents"]
    found = draft_gap.measure_gaps(kept, 2)
    assert found["steps"] == 3 and found["median"]["gap_us"]["p50"] == 35

"""The cost table, its file, and how it is measured."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from sgl_ext.errors import CostTableError
from sgl_ext.speculation import published_costs
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.cost_table_file import (
    MeasuredEngine,
    canonical_hash,
    check_rank_hashes,
    load_cost_table,
    write_cost_table,
)
from sgl_ext.speculation.measure_plan import (
    DRAFT,
    build_cost_table,
    plan_timings,
    robust_median,
)
from sgl_ext.speculation.time_steps import Samples, _read_event

ENGINE = MeasuredEngine(
    sglang="0.5.23", model="tiny@1", tp_size=3, verify="static", block=5, context_tokens=4096
)
TABLE = published_costs.tp3()


def test_a_batch_costs_what_the_next_larger_graph_costs() -> None:
    assert TABLE.plain_ns(3) == TABLE.plain_ns(4)
    assert TABLE.step_ns(1, 5) == TABLE.verify_ns[0][5] + TABLE.draft_ns[0]
    with pytest.raises(CostTableError, match="must be 1 to 16 for this cost table, got 17"):
        TABLE.plain_ns(17)


def test_ragged_rows_cost_between_the_equal_widths() -> None:
    assert TABLE.ragged_step_ns(4, 8) == TABLE.step_ns(4, 2)
    assert TABLE.step_ns(4, 2) < TABLE.ragged_step_ns(4, 9) < TABLE.step_ns(4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": (1, 2, 4, 8, 8)}, "strictly increasing"),
        ({"draft_ns": (1, 2)}, "must have 5 entries"),
        ({"verify_ns": ((5, 4),) * 5}, "of batch 1 must not fall with the width"),
        ({"verify_ns": ((5, 500),) * 5, "draft_ns": (0,) * 5}, "under 32 plain steps"),
    ],
)
def test_impossible_times_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CostTableError, match=message):
        replace(TABLE, **change)  # type: ignore[arg-type]


def test_the_file_comes_back_and_refuses_edits_and_other_engines(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    digest = write_cost_table(path, ENGINE, TABLE, [[20] * 6] * 5)
    assert load_cost_table(path, ENGINE) == (TABLE, digest)
    other = ENGINE.model_copy(update={"tp_size": 4})
    with pytest.raises(CostTableError, match="must be measured with tp_size 4, got 3") as refusal:
        load_cost_table(path, other)
    assert "docs/speculation.md" in refusal.value.hint
    content = json.loads(path.read_text())
    content["verify_ns"][0][5] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(CostTableError, match="must have the hash of its content"):
        load_cost_table(path, ENGINE)
    content["comment"] = "faster"
    path.write_text(json.dumps(content))
    with pytest.raises(CostTableError, match="must follow schema 1"):
        load_cost_table(path, ENGINE)
    with pytest.raises(CostTableError, match="must be readable"):
        load_cost_table(tmp_path / "none.json", ENGINE)


def test_ranks_with_different_tables_do_not_start() -> None:
    one = canonical_hash(ENGINE, TABLE)
    two = canonical_hash(ENGINE, published_costs.tp4_tuned())
    assert one != two
    check_rank_hashes({0: one, 1: one, 2: one})
    with pytest.raises(CostTableError, match=r"same on every rank.*ranks that differ: \[2\]"):
        check_rank_hashes({0: one, 1: one, 2: two})


def test_the_plan_times_every_batch_and_width_in_both_directions() -> None:
    timings = plan_timings([1, 2, 4, 8, 16, 32], 8, 5)
    assert {timing.batch for timing in timings} == {1, 2, 4, 8}
    assert {timing.width for timing in timings} == set(range(DRAFT, 6))
    of_one = [timing.width for timing in timings if timing.batch == 1]
    assert of_one[:7] == list(reversed(of_one[7:14]))


def test_measured_samples_become_the_table_that_made_them() -> None:
    draw = random.Random(3)
    samples = {}
    for batch, draft in zip(TABLE.batches, TABLE.draft_ns, strict=True):
        for width in range(DRAFT, 6):
            time_ns = (
                TABLE.plain_ns(batch) + draft
                if width == DRAFT
                else TABLE.step_ns(batch, width, drafted=width > 0)
            )
            noisy = [round(time_ns * draw.gauss(1, 0.005)) for _ in range(60)]
            samples[batch, width] = [*noisy, *[time_ns * 4] * 5]  # five steps with a prefill in them
    table, counts = build_cost_table(samples, 5)
    for measured, true in zip(table.verify_ns, TABLE.verify_ns, strict=True):
        assert all(abs(one / other - 1) < 0.01 for one, other in zip(measured, true, strict=True))
    assert all(count <= 60 for row in counts for count in row)
    assert isinstance(table, CostTable)


def test_a_draft_that_costs_nothing_beside_noise_costs_nothing() -> None:
    draw = random.Random(4)
    steps = {(1, width): [round(5e6 * draw.gauss(1, 0.01)) for _ in range(40)] for width in range(DRAFT, 6)}
    table, _ = build_cost_table(steps, 5)
    assert 0 <= table.draft_ns[0] < 0.02 * table.plain_ns(1)
    assert table.step_ns(1, 5) < 1.03 * table.plain_ns(1)


def test_a_step_of_one_request_may_take_longer_than_one_of_eight() -> None:
    slow = (tuple(2 * value for value in TABLE.verify_ns[3]), *TABLE.verify_ns[1:])
    assert replace(TABLE, verify_ns=slow).plain_ns(1) > TABLE.plain_ns(8)


def test_short_steps_are_timed_in_fours_and_long_ones_one_by_one() -> None:
    samples = Samples()
    for now_ms in (0, 9, 10, 11, 20, 24, 30, 36, 40):  # of 5 ms, some told late
        samples.add(now_ms * 1_000_000)
    assert samples.corrected() == [5_000_000, 5_000_000]
    samples = Samples()
    for now_ms in (0, 60, 180, 190, 210, 270):
        samples.add(now_ms * 1_000_000)
    assert samples.corrected() == [60_000_000, 120_000_000, 15_000_000, 60_000_000]


def test_parts_that_were_merged_are_made_good() -> None:
    samples = Samples()
    for part in range(9):
        samples.add(part * 8_000_000)
    samples.num_steps = 18  # the reply's end says so: two steps a part
    assert samples.corrected() == [4_000_000, 4_000_000]


def test_a_reply_s_parts_are_read_as_sglang_sends_them() -> None:
    part = (
        b'data: {"text":"ga","output_ids":[472],"meta_info":{"id":"zz-1","finish_reason":null,'
        b'"prompt_tokens":4,"completion_tokens":1,"cached_tokens_details":null,"dp_rank":null},"index":12}\n'
    )
    assert _read_event(part) == (12, None)
    end = part.replace(b'"finish_reason":null', b'"finish_reason":{"type":"abort"},"spec_verify_ct":7')
    index, meta = _read_event(end)
    assert index == 12 and meta is not None and meta["spec_verify_ct"] == 7
    with pytest.raises(CostTableError, match="must take the requests that are timed, got no"):
        _read_event(b'data: {"error":"no"}\n')


def test_a_busy_machine_is_refused() -> None:
    with pytest.raises(CostTableError, match="20 samples or more, got 3"):
        robust_median([1, 2, 3], "Batch 1, width 0")
    with pytest.raises(CostTableError, match="at most 20% outliers"):
        robust_median([100, 101, 102, 103] * 5 + [500] * 8, "Batch 1, width 0")
    samples = {(1, width): [1000 - 300 * width] * 20 for width in range(DRAFT, 2)}
    with pytest.raises(CostTableError, match="must not fall by more than 25%"):
        build_cost_table(samples, 1)
    table, _ = build_cost_table(samples, 1, allow_busy=True)  # asked for by name
    assert table.verify_ns[0][1] == table.plain_ns(1)

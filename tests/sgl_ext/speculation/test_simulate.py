"""The bars, on a few of the traces that benchmarks/spec_simulator.py runs in full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sgl_ext.errors import SettingError
from sgl_ext.speculation import published_costs
from sgl_ext.speculation.acceptance_trace import RequestTrace, Trace, read_trace, write_trace
from sgl_ext.speculation.generate_traces import draw_trace
from sgl_ext.speculation.simulate import FixedWidth, judge, run_policy
from sgl_ext.speculation.trace_recipes import ALL_RECIPES

RECIPES = {recipe.name: recipe for recipe in ALL_RECIPES}
TABLE = published_costs.tp4_profile()


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", ["prose", "code", "json", "hard", "random-weights"])
def test_many_requests_of_a_text_reach_all_bars(name: str, batch: int) -> None:
    verdict = judge(draw_trace(RECIPES[f"{name}-many"], 0), TABLE, batch)
    assert verdict.over_plain >= 0.97
    assert verdict.over_best >= 0.98
    assert verdict.regret <= 4


@pytest.mark.parametrize("name", ["code-hard-200", "json-random-200"])
def test_where_texts_change_it_beats_every_fixed_width(name: str) -> None:
    verdict = judge(draw_trace(replace(RECIPES[name], num_requests=2), 0), TABLE, 1)
    assert verdict.over_best > 1.05
    assert verdict.regret <= 4


def test_results_that_come_a_step_late_do_no_harm() -> None:
    verdict = judge(draw_trace(replace(RECIPES["prose-many"], num_requests=12), 0), TABLE, 1, lag=1)
    assert verdict.over_plain >= 1.3
    assert verdict.over_best >= 0.97
    assert verdict.regret <= 4


def test_a_fixed_width_takes_what_the_trace_says() -> None:
    trace = Trace(name="by hand", block=5, requests=(RequestTrace(runs=(2, 0, 0, 5, 0, 0, 0)),))
    result = run_policy(trace, TABLE, FixedWidth(TABLE, 2), 1)
    # places 0 (2 accepted), 3 (2 accepted), 6
    assert (result.num_steps, result.num_tokens) == (3, 7)
    assert result.time_ns == 3 * TABLE.step_ns(1, 2)
    none = run_policy(trace, TABLE, FixedWidth(TABLE, 0), 1)
    assert (none.time_ns, none.speed) == (7 * TABLE.plain_ns(1), 1.0)


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    trace = draw_trace(replace(RECIPES["prose-informative"], num_requests=2, tokens=20), 1)
    path = tmp_path / f"{trace.name}.jsonl"
    write_trace(path, trace)
    assert read_trace(path) == trace
    path.write_text('{"block": 5}\n{"runs": [6]}\n')
    with pytest.raises(SettingError, match=r"must hold .*a run beyond the block") as refusal:
        read_trace(path)
    assert refusal.value.hint

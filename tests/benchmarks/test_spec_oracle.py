"""The oracle of the simulator's bars, against gambler's ruin."""

from __future__ import annotations

import pytest

from benchmarks.spec_oracle import Bounded, least_ruin, ruin
from sgl_ext.speculation import published_costs
from sgl_ext.speculation.acceptance_trace import RequestTrace, Trace
from sgl_ext.speculation.simulate import run_policy


def test_ruin_is_the_gamblers() -> None:
    """Half a step is won or lost, eight lost ones in balance end it: ((1 - p) / p) ** 8."""
    ruined, misses, _ = ruin((0.6,), 0.5, 20_000)
    assert ruined == pytest.approx((0.4 / 0.6) ** 8, abs=1e-4)
    assert 0 < misses <= ruined


def test_a_short_gain_is_not_missed() -> None:
    """A gain under 2 % in all cannot put a request under 0.98 of it."""
    assert ruin((0.505,), 0.5, 20_000)[1:] == (0.0, 0)


def test_no_choice_of_widths_is_worse_than_one_width() -> None:
    one = least_ruin((0.6,), (0.5,), 400)
    assert one == pytest.approx((0.4 / 0.6) ** 8, abs=1e-3)
    assert least_ruin((0.6, 0.9), (0.5, 0.6), 400) < one


def test_the_bounded_width_stops_where_its_account_is_empty() -> None:
    table = published_costs.tp3()
    trace = Trace(name="nothing right", block=5, requests=(RequestTrace(runs=(0,) * 200),))
    extra = table.step_ns(1, 3) / table.plain_ns(1) - 1
    result = run_policy(trace, table, Bounded(table, 3), 1)
    assert result.worst_own_regret == pytest.approx(int(4 / extra) * extra)

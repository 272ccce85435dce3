"""Speculation's numbers for `sparkctl status`, from the text that the plugin's own metrics give."""

from __future__ import annotations

import pytest

from launcher.spec_figures import describe_spec, read_spec_figures
from sgl_ext.speculation import published_costs
from sgl_ext.speculation.controller import ControllerSettings, SpeculationController
from sgl_ext.speculation.metrics import SpeculationMetrics, exposition
from sgl_ext.speculation.request_option import SpecMode, SpecOption


def scrape(accepted: int, *, tuned: bool = True) -> str:
    """300 steps of one request that verifies 4 tokens, of which so many are accepted."""
    table = published_costs.steep()
    controller = SpeculationController(table, ControllerSettings())
    metrics = SpeculationMetrics(table.block)
    controller.admit("a", SpecOption(mode=SpecMode.FIXED, width=4))
    for _ in range(300):
        plan = controller.plan_verify(controller.plan_draft(["a"]))
        controller.observe(plan, [accepted])
        metrics.observe(plan, [accepted], draft_s=0.001, verify_s=0.01)
    return exposition(metrics.families()) + f"sparkctl_spec_tuned {int(tuned)}\n"


def test_figures_are_those_of_the_metrics() -> None:
    figures = read_spec_figures(scrape(accepted=3))
    assert figures is not None
    assert figures.tokens_per_step == 4
    assert figures.accepted == {1: 1.0, 2: 1.0, 3: 1.0, 4: 0.0}
    assert figures.widths[4] == 300
    assert figures.verify_s == pytest.approx(3, rel=1e-3)
    assert not figures.is_below_break_even
    assert describe_spec(figures) == [
        "tokens/step 4.00, accepted by position 100% 100% 100% 0%, steps by width 4:300, "
        "draft 0.3 s, verify 3.0 s"
    ]


def test_the_alarm_is_told() -> None:
    figures = read_spec_figures(scrape(accepted=0, tuned=False))
    assert figures is not None and figures.is_below_break_even
    lines = describe_spec(figures)
    assert lines[1] == "no cost table: requests verify whole blocks unless they ask for less"
    assert lines[2].startswith("ALARM: drafting brings 1.00 tokens a step and must bring 2.")


def test_an_engine_that_decides_no_widths_says_nothing() -> None:
    assert read_spec_figures("sglang:token_usage 0.1\n") is None

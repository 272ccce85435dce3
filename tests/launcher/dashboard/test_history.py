"""Rates from counters: windows, restarts, holes, and nothing made up."""

from __future__ import annotations

import math

import pytest

from launcher.dashboard.engine_metrics import EngineSample
from launcher.dashboard.history import HOLE_S, MAX_POINTS, History, figures_of, wait_quantile_us


def counted(at_s: float, tokens: float) -> EngineSample:
    return EngineSample(at_s=at_s, decode_tokens=tokens)


def test_a_rate_is_growth_over_the_window_only() -> None:
    samples = [
        counted(2.0 * step, 100.0 * step if step < 10 else 900.0 + 20.0 * (step - 9)) for step in range(20)
    ]
    assert figures_of(samples).tokens_per_s == pytest.approx(10.0)


def test_one_scrape_has_no_rate_but_the_engines_own() -> None:
    assert figures_of([counted(0.0, 5.0)]).tokens_per_s is None
    assert figures_of([EngineSample(at_s=0.0, tokens_per_s=33.5, decode_tokens=5.0)]).tokens_per_s == 33.5


def test_a_restarted_engine_gives_no_negative_rate() -> None:
    before = [counted(0.0, 1000.0), counted(2.0, 1100.0)]
    assert figures_of([*before, counted(4.0, 10.0)]).tokens_per_s is None
    assert figures_of([*before, counted(4.0, 10.0), counted(6.0, 40.0)]).tokens_per_s == pytest.approx(15.0)


def test_an_idle_engine_is_zero_and_a_silent_one_is_not_measured() -> None:
    assert figures_of([counted(0.0, 7.0), counted(2.0, 7.0)]).tokens_per_s == 0.0
    assert figures_of([EngineSample(at_s=0.0), EngineSample(at_s=2.0)]).tokens_per_s is None


def test_hit_share_of_the_window_then_of_all() -> None:
    first = EngineSample(at_s=0.0, engram_rows=1000.0, engram_hit_rows=500.0)
    busy = EngineSample(at_s=2.0, engram_rows=1100.0, engram_hit_rows=590.0)
    assert figures_of([first, busy]).engram_hit_share == pytest.approx(0.9)
    assert figures_of([first]).engram_hit_share == pytest.approx(0.5)
    assert figures_of([EngineSample(at_s=0.0, engram_rows=0.0, engram_hit_rows=0.0)]).engram_hit_share is None


def test_wait_quantile_is_the_bound_of_the_windows_steps() -> None:
    old = EngineSample(at_s=0.0, waits={10.0: 0.0, 50.0: 0.0, math.inf: 100.0})
    new = EngineSample(at_s=2.0, waits={10.0: 90.0, 50.0: 99.0, math.inf: 200.0})
    assert wait_quantile_us([old, new], 0.95) == 50.0
    assert wait_quantile_us([old, new], 0.995) == math.inf
    assert wait_quantile_us([EngineSample(at_s=0.0)], 0.95) is None


def test_history_is_bounded_and_shows_holes() -> None:
    made = History(keep_s=600.0)
    for step in range(1000):
        made.add(EngineSample(at_s=2.0 * step, queued=1.0))
    assert len(made.series("queued", 2000.0)) <= MAX_POINTS
    assert made.series("queued", 2000.0)[-1] == (2.0, 1.0)
    assert made.series("queued", 2000.0)[0][0] <= 602.0
    made.add(EngineSample(at_s=1998.0 + HOLE_S + 1.0, queued=3.0))
    assert None in [value for _, value in made.series("queued", 2100.0)]

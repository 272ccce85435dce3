"""A scrape of the real engine as figures: what it gives, and what it does not give."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.dashboard.engine_metrics import parse_exposition, read_sample
from sgl_ext.speculation.metrics import SpeculationMetrics, exposition
from tests.launcher.dashboard.moments import HEAD, WORKER, metrics_text


def test_a_recorded_scrape_gives_the_engines_values() -> None:
    sample = read_sample(1.0, HEAD, [WORKER])
    assert sample.running == 1 and sample.queued == 0 and sample.kv_tokens == 8192
    assert sample.decode_tokens == 372 and sample.kv_usage == 0.03
    assert sample.tokens_per_s == pytest.approx(33.0867, abs=1e-3)


def test_what_the_engine_does_not_give_is_not_zero() -> None:
    sample = read_sample(1.0, HEAD, [WORKER])
    # No draft: the gauge is there and holds 0, but a step always gives a token.
    assert sample.tokens_per_step is None
    assert sample.engram_rows is None and sample.engram_hit_rows is None and sample.waits == {}
    empty = read_sample(1.0, "")
    assert empty.running is None and empty.tokens_per_s is None and empty.kv_usage is None


def test_engram_counters_add_up_over_ranks() -> None:
    rank = 'sparkctl_engram_rows_total{tp_rank="%d"} %d\n'
    sample = read_sample(1.0, metrics_text(10), [rank % (1, 7), rank % (2, 5)])
    assert sample.engram_rows == 90_000 + 12
    assert sample.waits[math.inf] == 10_000 and next(iter(sample.waits)) == 10.0


def test_the_plugins_own_families_are_read() -> None:
    """As its publisher names them: a renamed family shows here."""
    metrics = SpeculationMetrics(5)
    metrics.alarm.observe(tokens_per_step=1.1, break_even=1.4)
    sample = read_sample(1.0, HEAD + exposition(metrics.families()))
    assert sample.draft_requests_off == 0 and sample.draft_below_break_even == metrics.alarm.is_on
    assert sample.draft_break_even == pytest.approx(metrics.alarm.break_even, rel=1e-4)
    without = read_sample(1.0, HEAD)
    assert without.draft_requests_off is None and without.draft_break_even is None


@pytest.mark.parametrize("text", [HEAD[:-40], "what is this\n", 'a{b="c\n', "x one\n"])
def test_a_damaged_scrape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="/metrics must"):
        read_sample(1.0, text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    with suppress(ValueError):
        parse_exposition(text)

"""Engram rows that nobody read: a long wave is refused alone, short ones with the whole run."""

from __future__ import annotations

import pytest

from launcher.bench.effect_checks import ENGRAM_ROWS, refuse_no_effect, refuse_no_rows
from launcher.bench.errors import BenchInvalid
from launcher.bench.wave import Wave
from launcher.results.records import EngineSample
from tests.launcher.results.make_run import make_request

WAVE = Wave(suite="decode", case="prose", concurrency=1, round=1, asks=())


def samples(*, seconds: float, rows: float) -> tuple[EngineSample, EngineSample]:
    """Before and after a wave, in which that many rows were counted."""
    return tuple(
        EngineSample.model_validate(
            {
                "protocol": "sparkctl-1", "suite": "decode", "case": "prose", "concurrency": 1, "round": 1,
                "warm_up": False, "when": when, "time_s": at_s,
                "metrics": {f'{ENGRAM_ROWS}{{tp_rank="0"}}': value},
            }
        )
        for when, at_s, value in (("before", 1.0, 50.0), ("after", 1.0 + seconds, 50.0 + rows))
    )  # type: ignore[return-value]  # fmt: skip


def test_a_long_wave_without_rows_is_refused_and_a_short_one_waits_for_the_others() -> None:
    answered = [make_request(round=1)]
    refuse_no_effect(("engram",), WAVE, *samples(seconds=10, rows=7), answered)
    with pytest.raises(BenchInvalid, match="must read Engram rows"):
        refuse_no_effect(("engram",), WAVE, *samples(seconds=10, rows=0), answered)
    refuse_no_effect(("engram",), WAVE, *samples(seconds=0.5, rows=0), answered)


def test_a_run_without_any_row_is_refused() -> None:
    none, some = samples(seconds=0.5, rows=0), samples(seconds=0.5, rows=3)
    with pytest.raises(BenchInvalid, match="in any wave"):
        refuse_no_rows(("engram",), [*none, *none])
    refuse_no_rows(("engram",), [*none, *some])
    refuse_no_rows((), [*none])

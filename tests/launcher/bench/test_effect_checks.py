"""What makes a figure none: a feature that is off or did nothing, a wrong cache, an impossible rate.

Engram rows that nobody read: a long wave is refused alone, short ones with the whole run.
"""

from __future__ import annotations

import pytest

from launcher.bench.effect_checks import (
    ENGRAM_ROWS,
    refuse_impossible,
    refuse_inactive,
    refuse_no_effect,
    refuse_no_rows,
    refuse_wrong_cache,
    untold_cache,
)
from launcher.bench.endpoint import ServerFacts
from launcher.bench.errors import BenchInvalid, BenchRefused
from launcher.bench.settings import BenchSettings
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


def engine(when: str, at_s: float, **metrics: float) -> EngineSample:
    """`passes`, `verified`: the engine's own counters."""
    names = {
        "passes": 'sglang:cuda_graph_passes_total{mode="decode_none"}',
        "verified": "sglang:spec_verify_calls_total",
    }
    return EngineSample.model_validate(
        {
            "protocol": "sparkctl-1", "suite": "decode", "case": "prose", "concurrency": 1, "round": 1,
            "warm_up": False, "when": when, "time_s": at_s,
            "metrics": {names[name]: value for name, value in metrics.items()},
        }
    )  # fmt: skip


def test_more_tokens_than_decode_passes_can_give_are_refused() -> None:
    one = Wave(suite="decode", case="prose", concurrency=1, round=1, asks=(), workers=1)
    answered = [make_request(round=1, tokens=11)]
    before = engine("before", 0.5, passes=100)
    refuse_impossible(BenchSettings(), one, before, engine("after", 9.0, passes=110), answered)
    with pytest.raises(BenchInvalid, match="10 tokens in 9 decode passes"):
        refuse_impossible(BenchSettings(), one, before, engine("after", 9.0, passes=109), answered)


def test_more_steps_than_memory_can_feed_are_refused() -> None:
    """Ten passes in 1.5 s, each over 1e9 bytes."""
    one = Wave(suite="decode", case="prose", concurrency=1, round=1, asks=(), workers=1)
    ends = engine("before", 0.5, passes=100), engine("after", 9.0, passes=110)
    answered = [make_request(round=1, tokens=11)]
    fast = BenchSettings(step_bytes=1e9, bandwidth_bytes_per_s=8e9)
    refuse_impossible(fast, one, *ends, answered)
    slow = BenchSettings(step_bytes=1e9, bandwidth_bytes_per_s=6e9)
    with pytest.raises(BenchInvalid, match="steps/s"):
        refuse_impossible(slow, one, *ends, answered)


def test_drafts_that_never_came_are_refused() -> None:
    answered = [make_request(round=1)]
    before = engine("before", 0.5, verified=5)
    refuse_no_effect(("speculation",), WAVE, before, engine("after", 9.0, verified=6), answered)
    with pytest.raises(BenchInvalid, match="counted no verify call"):
        refuse_no_effect(("speculation",), WAVE, before, engine("after", 9.0, verified=5), answered)


@pytest.mark.parametrize(
    ("cached", "warm", "said"), [(90, False, "must be cold"), (10, True, "must be warm")]
)
def test_a_cache_in_the_wrong_state_is_refused(cached: int, warm: bool, said: str) -> None:
    wave = Wave(suite="prefix", case="warm", concurrency=1, round=1, asks=(), is_cold=not warm, is_warm=warm)
    right = make_request(round=1, prompt_tokens=100, cached_tokens=100 - cached)
    refuse_wrong_cache(wave, None, None, [right])
    wrong = make_request(round=1, prompt_tokens=100, cached_tokens=cached)
    with pytest.raises(BenchInvalid, match=said):
        refuse_wrong_cache(wave, None, None, [wrong])


def test_a_warm_rate_of_the_whole_prompt_is_noted() -> None:
    warm = Wave(suite="prefix", case="warm", concurrency=1, round=1, asks=(), is_warm=True)
    told, untold = make_request(round=1, cached_tokens=90), make_request(round=1, cached_tokens=None)
    assert untold_cache(warm, [told]) == untold_cache(WAVE, [untold]) == []
    (note,) = untold_cache(warm, [untold])
    assert "of the whole prompt" in note and "--enable-cache-report" in note


@pytest.mark.parametrize(
    ("feature", "args"),
    [("speculation", {}), ("prefix-cache", {"disable_radix_cache": True}), ("engram", {})],
)
def test_a_feature_that_is_off_is_refused_before_anything_is_measured(
    feature: str, args: dict[str, object]
) -> None:
    facts = ServerFacts(engine_args=args, version="0.5.23", context_tokens=4096, is_sglang=True)
    with pytest.raises(BenchRefused, match="must be active"):
        refuse_inactive((feature,), facts, {})
    with pytest.raises(BenchRefused, match="got none from this endpoint"):
        refuse_inactive((feature,), facts, None)

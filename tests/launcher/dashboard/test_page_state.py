"""Each state a cluster can be in, as the page is told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from launcher.dashboard.engine_metrics import read_sample
from launcher.dashboard.history import History
from launcher.dashboard.load_estimate import estimate_load
from launcher.dashboard.page_state import page_state
from launcher.dashboard.recent_errors import MAX_CHARS, ErrorReader
from launcher.dashboard.run_facts import Proof, RunNow
from tests.launcher.dashboard.moments import (
    HEAD,
    NOW_S,
    NOW_UNIX,
    broken,
    earlier_runs,
    history,
    loading,
    moment,
    record,
    serving,
    with_node,
)


def state_of(run: RunNow, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    state = page_state(moment(run, ended=earlier_runs()), secrets)
    json.dumps(state, allow_nan=False)
    return dict(state["runs"][0])


def test_serving_with_all_figures() -> None:
    run = state_of(serving())
    assert run["verdict"] == "serving" and {node["status"] for node in run["nodes"]} == {"serving"}
    figures = run["figures"]
    assert figures["tokens_per_s"] == pytest.approx(27.5, rel=0.2)
    assert figures["engram_hit_share"] == pytest.approx(0.9, abs=0.02)
    assert figures["engram_wait_p95_us"] == 100.0 and figures["tokens_per_step"] > 2
    assert run["load"] is None and len(run["plots"]["tokens_per_s"]) == 75


def test_a_plain_model_has_no_engram_and_no_drafting() -> None:
    figures = state_of(serving(engram=False))["figures"]
    assert figures["engram_hit_share"] is None and figures["engram_wait_p95_us"] is None
    assert figures["tokens_per_step"] is None and figures["queued"] is not None


@pytest.mark.parametrize("kind", ["unreachable", "frozen", "dead", "orphaned"])
def test_one_broken_node_is_the_verdict_and_is_named(kind: str) -> None:
    run = state_of(broken(kind))
    assert run["verdict"] == kind
    assert [node["status"] for node in run["nodes"]] == ["not-serving", "not-serving", kind]
    assert run["nodes"][2]["detail"] and run["proof"]["failure"] == "timed out"


def test_loading_tells_phase_and_what_is_left() -> None:
    run = state_of(loading())
    assert run["verdict"] == "loading" and run["load"]["phase"] == "meeting the other ranks"
    assert run["load"]["usual_s"] == 181.0 and run["load"]["remaining_s"] == pytest.approx(81.0)
    assert run["nodes"][0]["detail"] == "loading weights 42 % (20/48)"
    assert run["figures"]["tokens_per_s"] is None


def test_no_estimate_without_an_earlier_start_and_none_past_it() -> None:
    starting = loading().record
    other_size = record("20260911-200000-00cc", nodes=2)
    assert estimate_load(starting, [other_size], NOW_UNIX).usual_s is None
    late = estimate_load(starting, earlier_runs(), NOW_UNIX + 500.0)
    assert late.usual_s == 181.0 and late.remaining_s is None


def test_a_node_that_falls_silent_is_unreachable() -> None:
    run = state_of(with_node(serving(), 1, heard_s=NOW_S - 20.0))
    assert run["verdict"] == "unreachable" and "no answer for 20 s" in run["nodes"][1]["detail"]


def test_old_figures_are_not_shown_as_present() -> None:
    run = state_of(replace(serving(), history=history(ago_s=60.0)))
    assert run["figures"]["tokens_per_s"] is None and run["plots"]["tokens_per_s"]


def test_an_old_proof_does_not_prove() -> None:
    run = state_of(replace(serving(), proof=Proof(token_s=NOW_S - 300.0)))
    assert run["verdict"] == "not-serving"


def test_a_run_just_opened_is_being_asked_not_broken() -> None:
    fresh = replace(serving(), proof=Proof())
    assert state_of(fresh)["verdict"] == "connecting"
    assert state_of(with_node(fresh, 0, heard=None))["nodes"][0]["status"] == "connecting"


def test_secrets_are_masked_wherever_they_stand() -> None:
    text = json.dumps(state_of(broken("dead")))
    assert "sk-thisisasecretvalue123" not in text and "***" in text
    failure = Proof(failed_s=NOW_S, failure="HTTP 401: key my-own-secret-key is wrong")
    assert "my-own-secret-key" not in json.dumps(
        state_of(replace(serving(), proof=failure), ("my-own-secret-key",))
    )


def test_a_wait_beyond_the_last_bound_is_said_so() -> None:
    def text(steps: int) -> str:
        line = 'sparkctl_engram_exposed_wait_steps_total{tp_rank="0",layer="2",le="%s"} %d\n'
        return HEAD + line % ("4000", 0) + line % ("inf", steps)

    beyond = History()
    beyond.add(read_sample(NOW_S - 3.0, text(10)))
    beyond.add(read_sample(NOW_S - 1.0, text(20)))
    figures = state_of(replace(serving(), history=beyond))["figures"]
    assert figures["engram_wait_p95_us"] is None and figures["engram_wait_is_beyond"] is True


def test_errors_are_found_counted_and_bounded() -> None:
    reader = ErrorReader("node-0", 0, lambda text: text)
    for second in range(3):
        reader.feed(f"[2026-09-11 23:34:1{second} TP0] RuntimeError: CUDA out of memory. Tried to allocate")
    reader.feed("[2026-09-11 23:34:13 TP0] Decode batch, #running-req: 1, error rate 0")
    reader.feed("Traceback (most recent call last):")
    reader.feed('  File "x.py", line 1, in f')
    reader.feed("ValueError: " + "x" * 5000)
    first, second_error = reader.newest
    assert first.num_times == 3 and first.time == "2026-09-11 23:34:12" and first.level == "error"
    assert second_error.text.startswith("ValueError: x") and len(second_error.text) <= MAX_CHARS + 4

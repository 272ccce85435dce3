from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.engine_phase import Phase, PhaseEvent, PhaseTracker, known_facts
from launcher.log_lines import LogLines
from tests.launcher.engine_log_files import CASES, read_bytes, read_lines

GB10 = "gb10-tp3-from-public-lines"


def track(lines: list[str], *, rank_is_head: bool = True) -> tuple[PhaseTracker, list[PhaseEvent]]:
    tracker = PhaseTracker(rank_is_head)
    return tracker, [event for line in lines if (event := tracker.feed(line))]


def new_phases(events: list[PhaseEvent]) -> list[Phase]:
    return [event.phase for event in events if event.is_new_phase]


def test_a_cpu_head_goes_through_all_its_phases() -> None:
    tracker, events = track(read_lines("one-node", 0))
    assert new_phases(events) == [
        Phase.RENDEZVOUS,
        Phase.LOADING,
        Phase.POST_PROCESSING,
        Phase.KV_POOL,
        Phase.SERVER,
        Phase.WARMUP,
        Phase.READY,
    ]
    assert tracker.is_ready
    facts = known_facts(tracker.facts)
    assert facts["max_total_num_tokens"] == 8192
    assert facts["context_len"] == 4096
    assert dict(tracker.facts.startup_s).keys() >= {"load_weight", "scheduler_e2e", "cuda_graph.decode"}


def test_a_cpu_worker_is_ready_when_its_health_server_is_up() -> None:
    tracker, events = track(read_lines("worker-scheduler-killed", 1), rank_is_head=False)
    assert new_phases(events) == [
        Phase.RENDEZVOUS,
        Phase.LOADING,
        Phase.POST_PROCESSING,
        Phase.KV_POOL,
        Phase.READY,
    ]
    assert tracker.is_ready


def test_a_gb10_head_goes_through_every_phase() -> None:
    tracker, events = track(read_lines(GB10, 0))
    assert new_phases(events) == list(Phase)[1:]
    facts = tracker.facts
    assert facts.max_total_num_tokens == 2999808
    assert facts.context_len == 1048576
    assert facts.max_running_requests == 4
    assert (facts.weight_gb, facts.draft_weight_gb) == (94.00, 2.80)
    assert (facts.load_weight_s, facts.rendezvous_s) == (541.76, 1.33)
    assert facts.available_mem_gb == 7.68
    assert facts.quantization == "fp8"
    assert facts.nccl_version == "2.30.7+cuda13.3"
    assert dict(facts.startup_s)["tokenizer_e2e"] == 766.76
    assert dict(facts.startup_s)["cuda_graph.target_verify"] == 13.48


def test_a_gb10_worker_goes_from_graphs_to_ready() -> None:
    tracker, events = track(read_lines(GB10, 1), rank_is_head=False)
    assert new_phases(events)[-2:] == [Phase.GRAPHS, Phase.READY]
    assert Phase.DRAFT in new_phases(events)
    assert tracker.facts.weight_gb == 95.31
    assert tracker.facts.draft_weight_gb == 2.80


def test_bars_give_percent_and_counts() -> None:
    _, events = track(read_lines(GB10, 0))
    bars = [(e.phase, e.percent, e.num_done, e.num_total) for e in events if e.percent is not None]
    assert (Phase.LOADING, 42, 20, 48) in bars
    assert (Phase.DRAFT, 100, 48, 48) in bars
    assert (Phase.GRAPHS, 25, 1, 4) in bars
    assert next(e.text for e in events if e.num_done == 20) == "loading weights 42 % (20/48)"


def test_a_full_shard_bar_starts_post_processing() -> None:
    tracker, _ = track(
        [
            "[2026-09-11 23:34:16 TP0] Load weight begin. avail mem=111.47 GB",
            "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:01<00:00,  3.10it/s]",
        ]
    )
    assert tracker.phase is Phase.POST_PROCESSING


def test_two_ranks_of_one_node_are_not_taken_for_a_draft() -> None:
    tracker, _ = track([f"[2026-09-11 23:34:16 TP{i}] Load weight begin. avail mem=1 GB" for i in (0, 1)])
    assert tracker.phase is Phase.LOADING


def test_a_head_is_not_ready_by_a_worker_line_and_the_other_way_round() -> None:
    dummy = "[2026-09-11 23:47:03] Dummy health check server started in background thread at 0.0.0.0:8888"
    roll = "[2026-09-11 23:47:03] The server is fired up and ready to roll!"
    assert track([dummy])[0].phase is Phase.STARTING
    assert track([roll], rank_is_head=False)[0].phase is Phase.STARTING


def test_text_that_quotes_a_marker_changes_nothing() -> None:
    tracker, events = track(["[2026-09-11 23:47:03] user said: The server is fired up and ready to roll!"])
    assert (tracker.phase, events) == (Phase.STARTING, [])


def test_an_uvicorn_line_is_not_ready() -> None:
    line = "INFO:     Uvicorn running on http://0.0.0.0:8888 (Press CTRL+C to quit)"
    tracker, _ = track([line])
    assert tracker.phase is Phase.WARMUP
    assert not tracker.is_ready


@pytest.mark.parametrize(
    ("case", "rank", "last"),
    [
        ("http-port-busy", 0, Phase.SERVER),
        ("dist-port-busy", 1, Phase.RENDEZVOUS),
        ("shard-missing-worker", 1, Phase.LOADING),
        ("context-too-long", 0, Phase.STARTING),
        ("unknown-flag", 0, Phase.STARTING),
    ],
)
def test_a_failed_start_stops_in_its_phase(case: str, rank: int, last: Phase) -> None:
    tracker, _ = track(read_lines(case, rank), rank_is_head=rank == 0)
    assert tracker.phase is last


@settings(max_examples=30, deadline=None)
@given(case=st.sampled_from(CASES), is_head=st.booleans(), cuts=st.lists(st.integers(0, 60_000), max_size=40))
def test_chunks_never_change_the_events_and_phases_never_go_back(
    case: str, is_head: bool, cuts: list[int]
) -> None:
    data = read_bytes(case, 0)
    lines, tracker, events = LogLines(), PhaseTracker(is_head), []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        events += [event for line in lines.feed(data[start:end]) if (event := tracker.feed(line))]
    events += [event for line in lines.finish() if (event := tracker.feed(line))]
    assert events == track(read_lines(case, 0), rank_is_head=is_head)[1]
    assert [e.phase for e in events] == sorted(e.phase for e in events)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.text()))
def test_no_text_breaks_the_tracker(lines: list[str]) -> None:
    track(lines)

"""A failed cluster in words: node, rank, exit status,
cause and the next command; never a neighbour's echo.
"""

from __future__ import annotations

import pytest

from launcher.cluster_view import BEAT_LOST_S, ClusterView
from launcher.failure_report import FailureReport, describe_failure, exit_text
from tests.launcher.local_plan import end, say, serving_view, tell

STAMP = "[2026-11-29 17:00:00 TP0]"
RESET = (
    f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7559: "
    "Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the"
    " application. Check the logs of the remote worker before reporting an error. GLHF!",
)


def report_of(view: ClusterView, now_s: float = 10.0) -> FailureReport:
    report = describe_failure(view, now_s)
    assert report is not None
    return report


def test_nothing_failed() -> None:
    assert describe_failure(serving_view(), 1.0) is None


def test_a_killed_scheduler_and_its_neighbours_echo() -> None:
    view = serving_view()
    end(view, "node-2", 5.0, "rank", "sglang::scheduler_TP2 ended", signal=9, pid=102)
    say(view, "node-0", 5.1, *RESET)
    end(view, "node-0", 5.1, "engine", "the engine's main process ended", signal=9)
    end(view, "node-1", 5.2, "peer", "node node-2 ended: sglang::scheduler_TP2 ended", peer="node-2")
    report = report_of(view)
    assert (report.node, report.who, report.exit_text) == ("node-2", "rank 2", "killed by SIGKILL")
    assert "sglang::scheduler_TP2 ended (killed by SIGKILL)" in report.message.splitlines()[0]
    assert "reset" not in report.message.lower() and "dmesg" in report.hint


def test_the_log_names_the_rank_that_had_an_error_of_its_own() -> None:
    """The head's engine ended first, but only because a worker could not load its weights."""
    view = serving_view()
    say(
        view,
        "node-1",
        4.0,
        "[2026-11-29 17:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        "RuntimeError: model.safetensors.index.json references 3 shard file(s) missing from /m"
        " (incomplete download?): ['a']",
    )
    say(
        view,
        "node-0",
        4.1,
        f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):",
        "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't"
        " finish loading."
        " It is likely due to unexpected failures (e.g., OOM) or a slow node.",
    )
    end(view, "node-0", 5.0, "engine", "the engine's main process ended", signal=9)
    end(view, "node-1", 5.1, "peer", "node node-0 ended: the engine's main process ended", peer="head")
    report = report_of(view)
    assert (report.node, report.who) == ("node-1", "rank 1")
    assert "3 shard file(s) missing" in report.cause and "its log shows the first error" in report.what
    assert report.exit_text == ""  # it was ended by its supervisor, which proves nothing


def test_a_killed_head_whose_workers_end_was_seen_first() -> None:
    """The worker's engine ends itself within ms of losing the head;
    its word can reach us before the head's.
    """
    view = serving_view(2)
    say(view, "node-1", 5.0, STAMP.replace("TP0", "TP1") + RESET[0][len(STAMP) :], RESET[1])
    end(view, "node-1", 5.0, "engine", "the engine's main process ended", signal=9)
    end(view, "node-0", 5.1, "engine", "the engine's main process ended", signal=9)
    report = report_of(view)
    assert (report.node, report.who) == ("node-0", "rank 0")
    assert report.what.startswith("the engine's main process ended (killed by SIGKILL); node-1: ")
    assert "first error" not in report.message


def test_a_frozen_rank_is_its_own_cause() -> None:
    view = serving_view()
    say(view, "node-0", 4.0, *RESET)
    end(view, "node-1", 5.0, "frozen", "sglang::scheduler_TP1 stayed stopped (SIGSTOP) for 10 s", pid=101)
    end(view, "node-0", 5.1, "peer", "node node-1 ended: ...", peer="node-1")
    report = report_of(view)
    assert (report.node, report.who, report.cause) == ("node-1", "rank 1", "")
    assert "SIGSTOP" in report.message and "who stopped pid 101" in report.hint


def test_an_unplugged_node() -> None:
    view = serving_view()
    late_s = BEAT_LOST_S + 2
    view.nodes["node-0"].feed({"beat": 1}, late_s)
    view.nodes["node-1"].feed({"beat": 1}, late_s)
    tell(view, "node-0", late_s, quiet_peers=["node-2"])
    say(view, "node-0", late_s, *RESET)
    report = report_of(view, late_s)
    assert (report.node, report.who, report.cause) == ("node-2", "rank 2", "")
    assert "no sign of life" in report.message and "cable" in report.hint


@pytest.mark.parametrize(
    ("told_by", "peer", "culprit"), [("node-0", "node-1", "node-1"), ("node-1", "head", "node-0")]
)
def test_a_peer_that_fell_silent_is_the_one_to_look_at(told_by: str, peer: str, culprit: str) -> None:
    view = serving_view(2)
    end(view, told_by, 5.0, "peer-silent", f"{peer}: its supervisor ended without a word", peer=peer)
    report = report_of(view)
    assert report.node == culprit
    assert "ended without a word" in report.what and f"says {told_by}" in report.what
    assert report.exit_text == ""


def test_an_engine_that_was_never_started() -> None:
    view = serving_view(1)
    end(
        view,
        "node-0",
        1.0,
        "start",
        "the engine could not be started: [Errno 2] No such file or directory: '/x'",
    )
    report = report_of(view)
    assert report.node == "node-0" and "/x" in report.message and "--supervisor" in report.hint


def test_an_exit_nobody_explains_shows_the_last_lines() -> None:
    view = serving_view(1)
    say(view, "node-0", 1.0, f"{STAMP} something new", f"{STAMP} the very last word")
    end(view, "node-0", 2.0, "engine", "the engine's main process ended", exit_code=0)
    report = report_of(view)
    assert "exit status 0" in report.message.splitlines()[0]
    assert "the very last word" in report.message and "sparkctl logs" in report.hint


@pytest.mark.parametrize(
    ("how", "text"),
    [({"signal": 9}, "killed by SIGKILL"), ({"signal": 250}, "killed by signal 250"),
     ({"exit_code": 3}, "exit status 3"), ({}, "")],
)  # fmt: skip
def test_exit_text(how: dict[str, int], text: str) -> None:
    assert exit_text(how) == text

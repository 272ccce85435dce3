"""Root causes in logs of real failed runs, and in logs put together from them."""

from __future__ import annotations

import pytest

from launcher.root_cause import ExitInfo, RankLabel, RootCause, find_root_cause
from tests.launcher.engine_log_files import label, read_exits, read_lines, read_logs

CLOSED_BY_PEER = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    " [127.0.0.1]:2191."
)


def find(case: str) -> RootCause:
    return find_root_cause(read_logs(case), read_exits(case))


def record(time: str, text: str, words: str = "") -> str:
    return f"[2026-11-29 {time}{words}] {text}"


def fail(time: str, exception: str, words: str = " TP0") -> list[str]:
    return [
        record(time, "Scheduler hit an exception: Traceback (most recent call last):", words),
        '  File "scheduler.py", line 1, in run',
        "    raise ValueError(text)",
        exception,
        "",
        record(time, "Received sigquit from a child process. It usually means the child failed."),
        record(time, "kill_process_tree called: parent_pid=7, include_parent=True, pid=7"),
    ]


@pytest.mark.parametrize(
    ("case", "rank", "rule", "line"),
    [
        (
            "context-too-long",
            0,
            "context-too-long",
            "ValueError: Warning: User-specified context_length (10000000)",
        ),
        (
            "dist-port-busy",
            0,
            "dist-port-busy",
            "torch.distributed.DistNetworkError: The server socket has failed",
        ),
        ("gloo-ifname-worker", 1, "interface-unknown", "RuntimeError: [enforce fail at "),
        ("head-scheduler-killed", 0, "killed-while-serving", "Subprocess scheduler_0 (pid="),
        (
            "http-port-busy",
            0,
            "http-port-busy",
            "ERROR:    [Errno 98] error while attempting to bind on address",
        ),
        (
            "model-missing-worker",
            1,
            "model-path-missing",
            "huggingface_hub.errors.HFValidationError: Repo id must",
        ),
        (
            "scheduler-oom-loading",
            1,
            "killed-while-starting",
            "RuntimeError: Rank 0 scheduler died during init",
        ),
        (
            "shard-missing-worker",
            1,
            "shards-missing",
            "RuntimeError: model.safetensors.index.json references 1 ",
        ),
        ("unknown-flag", 0, "unknown-flag", "sglang serve: error: unrecognized arguments: --no-such-flag 1"),
        ("worker-killed", 1, "killed-from-outside", ""),
        ("worker-scheduler-killed", 1, "killed-while-serving", "Scheduler or DataParallelController "),
    ],
)
def test_the_root_of_a_real_failure(case: str, rank: int, rule: str, line: str) -> None:
    cause = find(case)
    assert (cause.found, cause.rank, cause.case) == (True, label(rank), rule)
    assert cause.line.startswith(line)
    assert not cause.is_secondary
    assert cause.hint
    assert label(rank).node in cause.headline
    assert "{" not in cause.explanation + cause.hint


def test_explanation_and_hint_name_what_the_user_must_look_at() -> None:
    cause = find("shard-missing-worker")
    assert "/models/tiny-qwen3" in cause.explanation
    assert "spark-b" in cause.hint
    assert "4096" in find("context-too-long").hint
    assert "enp1s0f1np1" in find("gloo-ifname-worker").explanation
    assert "dmesg" in find("worker-killed").hint


def test_exit_zero_of_a_worker_is_explained() -> None:
    cause = find("worker-scheduler-killed")
    assert cause.exit == ExitInfo(code=0, seen_at_s=0.0)
    assert any("rank 1 on spark-b: exit 0 hides a failure" in note for note in cause.notes)
    assert any("rank 0 on spark-a: signal 9 is the engine ending" in note for note in cause.notes)


def test_a_process_that_stays_alive_without_api_is_explained() -> None:
    assert any("still alive" in note for note in find("http-port-busy").notes)


def test_minus_nine_of_a_tree_that_killed_itself_is_no_oom() -> None:
    cause = find("shard-missing-worker")
    assert len([note for note in cause.notes if "no proof of an OOM kill" in note]) == 2


def test_a_stop_on_request_is_told_as_such() -> None:
    cause = find("one-node")
    assert (cause.case, cause.exit) == ("stopped", ExitInfo(code=0, seen_at_s=0.0))


def test_the_head_alone_knows_only_a_consequence() -> None:
    logs = {label(0): read_lines("worker-killed", 0)}
    cause = find_root_cause(logs, {label(0): ExitInfo(code=-9), label(1): ExitInfo(code=None)})
    assert (cause.case, cause.is_secondary) == ("peer-gone", True)


def test_a_frozen_worker_is_the_suspect_behind_the_heads_watchdog() -> None:
    cause = find("worker-frozen-busy")
    assert (cause.case, cause.rank, cause.is_secondary) == ("watchdog-frozen-peer", label(0), True)
    assert cause.suspects == (label(1),)
    assert "No word of it from rank 1 on spark-b (still running)" in cause.explanation


def test_before_the_head_has_told_of_its_killed_scheduler_it_is_the_suspect() -> None:
    logs = read_logs("head-scheduler-killed")
    told = next(i for i, line in enumerate(logs[label(0)]) if "Subprocess scheduler_0" in line)
    logs[label(0)] = logs[label(0)][:told]
    cause = find_root_cause(logs, {label(0): ExitInfo(code=None), label(1): ExitInfo(code=-9)})
    assert (cause.case, cause.rank, cause.is_secondary) == ("peer-gone", label(1), True)
    assert cause.suspects == (label(0),)


def test_a_missing_log_of_the_killed_rank_is_enough() -> None:
    logs = {label(0): read_lines("worker-killed", 0)}
    cause = find_root_cause(logs, {label(0): ExitInfo(code=-9), label(1): ExitInfo(code=137)})
    assert (cause.case, cause.rank) == ("killed-from-outside", label(1))


def test_ranks_that_the_launcher_ended_are_not_blamed() -> None:
    logs = {label(0): read_lines("worker-killed", 0)}
    exits = {label(0): ExitInfo(code=-9), label(1): ExitInfo(code=-9, ended_by_launcher=True)}
    cause = find_root_cause(logs, exits)
    assert (cause.rank, cause.case) == (label(0), "peer-gone")
    assert not any("rank 1" in note for note in cause.notes)


def test_a_rank_without_network_exception_is_preferred_even_when_its_clock_is_ahead() -> None:
    logs = {
        label(0): fail("10:00:00", CLOSED_BY_PEER),
        label(1): fail("10:03:00", "KeyError: 'layers.3'", " TP1"),
    }
    cause = find_root_cause(logs, {})
    assert (cause.rank, cause.line, cause.case) == (label(1), "KeyError: 'layers.3'", "exception")


def test_a_consequence_after_a_lost_peer_is_not_the_root() -> None:
    logs = {
        label(0): [*fail("10:00:00", CLOSED_BY_PEER), *fail("10:00:02", "KeyError: 'gone'")],
        label(1): [],
    }
    cause = find_root_cause(logs, {label(0): ExitInfo(code=-9), label(1): ExitInfo(code=-9)})
    assert (cause.rank, cause.case) == (label(1), "killed-from-outside")


def test_the_earlier_of_two_unknown_exceptions_wins() -> None:
    logs = {
        label(0): fail("10:00:30", "ValueError: second"),
        label(1): fail("10:00:00", "ValueError: first", " TP1"),
    }
    assert find_root_cause(logs, {}).line == "ValueError: first"


def test_a_known_cause_much_later_does_not_win_over_an_unknown_exception() -> None:
    logs = {
        label(0): fail("10:00:00", "ValueError: odd"),
        label(1): fail("10:00:30", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    }
    assert find_root_cause(logs, {}).line == "ValueError: odd"


def test_an_exception_long_after_a_lost_peer_stands_for_itself() -> None:
    logs = {label(0): [*fail("10:00:00", CLOSED_BY_PEER)[:-2], *fail("10:05:00", "KeyError: 'own'")]}
    assert find_root_cause(logs, {}).line == "KeyError: 'own'"


def test_a_rank_that_lost_its_peer_was_not_killed_from_outside() -> None:
    logs = {label(0): fail("10:00:00", CLOSED_BY_PEER)[:-2], label(1): []}
    cause = find_root_cause(logs, {label(0): ExitInfo(code=-9), label(1): ExitInfo(code=None)})
    assert (cause.case, cause.rank) == ("peer-gone", label(0))


def test_known_clock_differences_are_taken_off() -> None:
    logs = {
        label(0): fail("10:00:30", "ValueError: first"),
        label(1): fail("10:00:00", "ValueError: second", " TP1"),
    }
    exits = {label(0): ExitInfo(code=-9, clock_ahead_s=60.0), label(1): ExitInfo(code=-9)}
    assert find_root_cause(logs, exits).line == "ValueError: first"


def test_within_the_same_seconds_a_known_cause_wins_over_an_unknown_exception() -> None:
    logs = {
        label(0): fail("10:00:00", "ValueError: odd"),
        label(1): fail("10:00:02", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    }
    assert find_root_cause(logs, {}).case == "cuda-oom"


def test_of_a_chain_of_exceptions_the_last_counts() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "KeyError: 'inner'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "a.py", line 2, in g',
        "RuntimeError: outer",
    ]
    assert find_root_cause({label(0): lines}, {}).line == "RuntimeError: outer"


def test_a_source_line_that_names_an_exception_is_not_the_root() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    raise HFValidationError(text)",
        "OverflowError: other",
    ]
    assert find_root_cause({label(0): lines}, {}).line == "OverflowError: other"


def test_a_failed_request_long_ago_is_not_the_root() -> None:
    asgi = [
        record("06:00:00", "ERROR:    Exception in ASGI application"),
        "Traceback (most recent call last):",
        '  File "http_server.py", line 1, in f',
        "KeyError: 'a request'",
    ]
    worker = read_lines("worker-scheduler-killed", 1)
    at = next(i for i, line in enumerate(worker) if "Dummy health check" in line) + 1
    logs = {
        label(0): [
            record("05:00:00", "The server is fired up and ready to roll!"),
            *asgi,
            record("06:00:01", "Scheduler hit an exception: Traceback (most recent call last):", " TP0"),
            "ValueError: survived somehow",
            *read_lines("worker-scheduler-killed", 0),
        ],
        label(1): [*worker[:at], *worker[at:]],
    }
    assert find_root_cause(logs, read_exits("worker-scheduler-killed")).case == "killed-while-serving"
    recent = [*read_lines("worker-killed", 0)[:-3], *asgi]
    assert find_root_cause({label(0): recent}, {}).case == "peer-gone"


def test_an_api_client_that_hangs_up_is_no_lost_peer() -> None:
    lines = [
        record("10:00:00", "ERROR:    Exception in ASGI application"),
        "Traceback (most recent call last):",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        *fail("10:00:01", "IndexError: list index out of range"),
    ]
    cause = find_root_cause({label(0): lines}, {})
    assert (cause.line, cause.is_secondary) == ("IndexError: list index out of range", False)


def test_a_start_that_waits_for_its_peer_is_not_blamed_for_early_socket_warnings() -> None:
    waiting = [
        "[W1129 10:00:00.612811004 socket.cpp:752] [c10d] The client socket has failed to connect to"
        " [localhost]:33900 (errno: 111 - Connection refused).",
        record("10:00:09", "Init parallel begin.", " TP1"),
    ]
    logs = {label(0): fail("10:01:00", CLOSED_BY_PEER), label(1): waiting}
    cause = find_root_cause(logs, {label(0): ExitInfo(code=-9), label(1): ExitInfo(code=-9)})
    assert (cause.rank, cause.case) == (label(1), "killed-from-outside")


def test_an_exit_without_any_message() -> None:
    cause = find_root_cause({label(0): [record("10:00:00", "hello")]}, {label(0): ExitInfo(code=3)})
    assert (cause.case, cause.rank) == ("ended-without-message", label(0))
    assert cause.last_lines == ((label(0), (record("10:00:00", "hello"),)),)
    assert "exit 3" in cause.explanation


def test_nothing_found_says_so_and_shows_the_last_lines() -> None:
    lines = [record("10:00:00", f"line {i}") for i in range(50)]
    cause = find_root_cause({label(0): lines, label(1): []}, {label(0): ExitInfo(code=0)})
    assert not cause.found
    assert cause.explanation.startswith("No known failure message")
    assert cause.last_lines[0] == (label(0), tuple(lines[-20:]))


def test_no_logs_and_no_exits() -> None:
    cause = find_root_cause({}, {})
    assert not cause.found
    assert "no rank has ended" in cause.headline


@pytest.mark.parametrize(
    ("code", "signal", "text"),
    [
        (-9, 9, "killed by signal 9"),
        (137, 9, "killed by signal 9"),
        (143, 15, "killed by signal 15"),
        (1, None, "exit 1"),
        (0, None, "exit 0"),
        (None, None, "still running"),
        (255, None, "exit 255"),
    ],
)
def test_exits_in_words(code: int | None, signal: int | None, text: str) -> None:
    assert (ExitInfo(code=code).signal, str(ExitInfo(code=code))) == (signal, text)


def test_a_log_that_repeats_a_message_for_days_stays_bounded_and_fast() -> None:
    first = record("00:00:00", "The server is fired up and ready to roll!")
    noise = [
        line
        for i in range(20_000)
        for line in (
            record(
                f"{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}", "Decode out of memory. Try to lower", " TP0"
            ),
            record(f"{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}", "Decode batch, #running-req: 1", " TP0"),
        )
    ]
    end = [record("12:00:00", "Subprocess scheduler_0 (pid=1) crashed with exit code -9. Triggering SIGQUIT")]
    assert find_root_cause({label(0): [first, *noise, *end]}, {}).case == "killed-while-serving"


def test_rank_labels_read_well_and_sort_by_node() -> None:
    assert str(RankLabel(node="spark-1", rank=2)) == "rank 2 on spark-1"
    assert sorted([label(1), label(0)]) == [label(0), label(1)]

"""Fan-out over nodes and its grouping of errors."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import AuthenticationRefused, NodeFailed, NodeUnreachable, SparkctlError
from launcher.local_remote import LocalRemote
from launcher.remote import Remote
from launcher.run_on_all import errors_of, group_by_reason, run_on_all

pytestmark = pytest.mark.timeout(30)


def local(*names: str) -> Sequence[Remote]:
    return [LocalRemote(name) for name in names]


def test_every_node_has_a_value_or_an_error() -> None:
    def work(remote: Remote) -> str:
        if remote.node == "b":
            raise NodeFailed("disk must be writable, got read-only (/data).", hint="remount")
        if remote.node == "c":
            raise ZeroDivisionError("x")
        return remote.run(["echo", remote.node]).stdout.decode().strip()

    results = run_on_all(local("c", "a", "b"), work)
    assert list(results) == ["c", "a", "b"]
    assert results["a"].unwrap() == "a"
    with pytest.raises(NodeFailed, match="b: disk must be writable"):
        results["b"].unwrap()
    bug = results["c"].error
    assert bug is not None and bug.exit_code == 70 and isinstance(bug.__cause__, ZeroDivisionError)
    assert str(bug) == "c: unexpected ZeroDivisionError: x"
    assert sorted(errors_of(results)) == ["b", "c"]


def test_no_nodes_no_results() -> None:
    assert run_on_all([], lambda remote: 1) == {}


def test_all_run_at_once() -> None:
    barrier = threading.Barrier(5)
    results = run_on_all(local(*"abcde"), lambda remote: barrier.wait(60))
    assert not errors_of(results)


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_than_max_parallel_run_at_once(limit: int) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def work(remote: Remote) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1

    run_on_all(local(*"abcde"), work, max_parallel=limit)
    assert most == limit


def test_interrupt_is_raised_at_once_and_nothing_more_starts() -> None:
    started: list[str] = []
    go_on = threading.Event()

    def work(remote: Remote) -> None:
        started.append(remote.node)
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(60)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_on_all(local("a", "b", "c"), work, max_parallel=1)
    assert time.monotonic() - began < 30
    go_on.set()
    time.sleep(0.2)
    assert started == ["a"]


def test_same_reason_is_said_once_with_all_places() -> None:
    refused = "SSH server must accept connections, got refusal"
    errors: dict[str, SparkctlError] = {
        "n1": NodeUnreachable(f"{refused} (10.0.0.1:22).", hint="ssh 1"),
        "n2": AuthenticationRefused("SSH login must work, got refusal (10.0.0.2:22).", hint="add"),
        "n3": NodeUnreachable(f"{refused} (10.0.0.3:22).", hint="ssh 3"),
        "n4": NodeUnreachable("no place given"),
    }
    groups = group_by_reason(errors)
    assert [str(group) for group in groups] == [
        "n1, n3: SSH server must accept connections, got refusal (10.0.0.1:22, 10.0.0.3:22).",
        "n2: SSH login must work, got refusal (10.0.0.2:22).",
        "n4: no place given",
    ]
    assert [group.hints for group in groups] == [("ssh 1", "ssh 3"), ("add",), ()]


@given(st.dictionaries(st.text("abn12", min_size=1), st.text("x (),.\n", max_size=12)))
def test_grouping_loses_no_node(messages: dict[str, str]) -> None:
    groups = group_by_reason({node: NodeFailed(text) for node, text in messages.items()})
    assert sorted(node for group in groups for node in group.nodes) == sorted(messages)

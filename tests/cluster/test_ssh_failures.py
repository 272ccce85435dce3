"""A serving cluster of two nodes loses a part: who failed, how, why and what to do next is told in seconds,
everything is ended, and no neighbour's "connection reset" is taken for the cause."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import httpx
import pytest

from tests.cluster.sparkctl_process import Done, Running, assert_one_clear_error, cause_of
from tests.cluster.ssh_cluster import (
    FREEZE_TIMEOUT_S,
    PEER_TIMEOUT_S,
    SshCluster,
    find,
    wait_until_empty,
)
from tests.cluster.test_ssh_life import key_path
from tests.hosts import NETNS_MARKS

pytestmark = [*NETNS_MARKS, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(400)]

# The bars are 2 s and 3 s (benchmarks/launch.py); a busy test machine gets more.
TOLD_S = 20.0
DOWN_S = 30.0


def assert_no_echo(done: Done) -> None:
    """The cause is no line about a lost neighbour."""
    assert not re.search(r"reset by peer|closed by peer|broken pipe", cause_of(done), re.IGNORECASE), (
        done.output
    )


def failure(cluster: SshCluster, follower: Running, since_s: float, *parts: str) -> Done:
    """What the follower told about what happened at `since_s`."""
    told_s = follower.wait_for("error:", TOLD_S + 30) - since_s
    for host in cluster.hosts.nodes:
        wait_until_empty(host, 60)
    down_s = time.monotonic() - since_s
    done = follower.wait(60)
    assert_one_clear_error(done, *parts, exit_code=6)
    assert_no_echo(done)
    assert told_s < TOLD_S and down_s < DOWN_S, (told_s, down_s, done.output)
    cluster.assert_nothing_left()
    return done


def test_a_killed_worker_and_replace(cluster: SshCluster) -> None:
    first = cluster.sparkctl.follow(*cluster.unprobed(2))
    os.kill(first.pid, signal.SIGINT)
    detached = first.wait(60)
    assert detached.exit_code == 0 and "detached" in detached.stderr, detached.output
    assert cluster.sparkctl.run("status").exit_code == 0  # Ctrl-C under --follow leaves it serving
    follower = cluster.sparkctl.follow("--replace", *cluster.unprobed(2))
    old, new = cluster.sparkctl.run_ids()
    assert cluster.sparkctl.record(old)["status"] == "stopped"
    assert cluster.sparkctl.record(new)["skipped_checks"] == ["collective"]
    assert new in cluster.sparkctl.run("status").stdout
    started_s = time.monotonic()
    os.kill(find(cluster.hosts["node2"], "engine").pid, signal.SIGKILL)
    done = failure(
        cluster, follower, started_s, "node2: rank 1 failed", "killed by SIGKILL", "main process", "dmesg"
    )
    assert "node1" not in done.stderr.split("error:")[1].splitlines()[0]
    status = cluster.sparkctl.run("status")
    assert status.exit_code == 6 and "dead" in status.stdout


def test_a_killed_head(cluster: SshCluster) -> None:
    follower = cluster.sparkctl.follow(*cluster.unprobed(2))
    started_s = time.monotonic()
    os.kill(find(cluster.hosts["node1"], "engine").pid, signal.SIGKILL)
    failure(cluster, follower, started_s, "node1: rank 0 failed", "killed by SIGKILL", "main process")


def test_a_frozen_worker(cluster: SshCluster) -> None:
    """Idle: warned, continued, forgotten. Busy: warned, then ended."""
    follower = cluster.sparkctl.follow(*cluster.unprobed(2))
    scheduler = find(cluster.hosts["node2"], "scheduler")
    os.kill(scheduler.pid, signal.SIGSTOP)
    follower.wait_for("is stopped (SIGSTOP)", 60)
    os.kill(scheduler.pid, signal.SIGCONT)
    time.sleep(FREEZE_TIMEOUT_S + 1)
    assert cluster.sparkctl.run("status").exit_code == 0
    busy = threading.Thread(target=stream_for_long, args=(cluster,), daemon=True)
    busy.start()
    time.sleep(1)
    started_s = time.monotonic()
    os.kill(scheduler.pid, signal.SIGSTOP)
    frozen = cluster.sparkctl.run("status", timeout_s=60)
    assert frozen.exit_code == 6 and "node2" in frozen.stdout and "frozen" in frozen.stdout, frozen.output
    failure(
        cluster,
        follower,
        started_s + FREEZE_TIMEOUT_S,
        "node2: rank 1 failed",
        "SIGSTOP",
        "find out who stopped",
    )
    busy.join(10)


def stream_for_long(cluster: SshCluster) -> None:
    key = key_path(cluster, cluster.sparkctl.run_ids()[-1]).read_text().strip()
    body = {
        "text": "one two three",
        "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True},
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {key}"}
    try:
        with httpx.stream(
            "POST", f"{cluster.address}/generate", json=body, headers=headers, timeout=60
        ) as answer:
            for _ in answer.iter_lines():
                pass
    except httpx.HTTPError:
        return  # the cluster was ended under it


def test_a_frozen_idle_worker_without_a_launcher(cluster: SshCluster) -> None:
    """The nodes end the run by themselves, and status tells why."""
    cluster.sparkctl.up(*cluster.unprobed(2))
    os.kill(find(cluster.hosts["node2"], "scheduler").pid, signal.SIGSTOP)
    for host in cluster.hosts.nodes:
        wait_until_empty(host, FREEZE_TIMEOUT_S + 60)
    status = cluster.sparkctl.run("status")
    assert status.exit_code == 6 and "stayed stopped (SIGSTOP)" in status.stdout, status.output
    cluster.assert_nothing_left()


def test_an_unplugged_node(cluster: SshCluster) -> None:
    """Both halves end by themselves: the one we see, and the one that nobody reaches."""
    follower = cluster.sparkctl.follow(*cluster.unprobed(2))
    cluster.hosts["node2"].unplug()
    follower.wait_for("error:", PEER_TIMEOUT_S + 60)
    wait_until_empty(cluster.hosts["node2"], PEER_TIMEOUT_S + 60)
    wait_until_empty(cluster.hosts["node1"], PEER_TIMEOUT_S + 60)
    done = follower.wait(60)
    assert_one_clear_error(done, "node2: rank 1 failed", "no sign of life", "cable", exit_code=6)
    assert_no_echo(done)
    unreachable = cluster.sparkctl.run("status", timeout_s=60)
    assert unreachable.exit_code == 6 and "unreachable" in unreachable.stdout, unreachable.output
    cluster.hosts["node2"].plug()
    down = cluster.sparkctl.run("down")
    assert down.exit_code == 0, down.output
    cluster.assert_nothing_left()

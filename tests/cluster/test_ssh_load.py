"""What goes wrong while a cluster of two nodes still loads."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cluster.sparkctl_process import Running, assert_one_clear_error
from tests.cluster.ssh_cluster import SshCluster, find, kind_of, wait_until_empty
from tests.cluster.test_ssh_failures import DOWN_S, TOLD_S, assert_no_echo
from tests.hosts import NETNS_MARKS

pytestmark = [*NETNS_MARKS, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(300)]


def wait_for_kind(cluster: SshCluster, name: str, what: str, timeout_s: float = 120.0) -> int:
    """Pid of the node's first process of that kind."""
    host = cluster.hosts[name]
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for process in host.processes():
            if kind_of(process, host) == what:
                return process.pid
        time.sleep(0.02)
    raise AssertionError(f"no {what} on {name}: {host.processes()}")


def test_a_scheduler_that_is_killed_while_loading(cluster: SshCluster) -> None:
    up = cluster.sparkctl.start("up", *cluster.unprobed(2))
    pid = wait_for_kind(cluster, "node2", "scheduler")
    time.sleep(1.0)
    started_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    told_s = up.wait_for("error:", TOLD_S + 30) - started_s
    done = up.wait(60)
    # On a busy machine it may die before its supervisor has seen it: then the engine's own words tell of it.
    assert_one_clear_error(done, "node2: rank 1 failed", "dmesg", exit_code=6)
    assert "SIGKILL" in done.stderr or "killed with signal 9" in done.stderr, done.output
    assert_no_echo(done)
    for host in cluster.hosts.nodes:
        wait_until_empty(host, 60)
    assert told_s < TOLD_S and time.monotonic() - started_s < DOWN_S, done.output
    cluster.assert_nothing_left()


def test_a_launcher_that_is_killed_while_loading(cluster: SshCluster) -> None:
    """The run goes on; a fresh process sees it load, and ends it."""
    up = cluster.sparkctl.start("up", *cluster.unprobed(2))
    up.wait_for("importing the engine", 60)
    up.kill()
    time.sleep(1.5)
    status = cluster.sparkctl.run("status")
    assert status.exit_code == 6 and status.stdout.count("loading") >= 2, status.output
    down = cluster.sparkctl.run("down")
    assert down.exit_code == 0 and down.seconds < 30, down.output
    cluster.assert_nothing_left()
    (run_id,) = cluster.sparkctl.run_ids()
    assert cluster.sparkctl.record(run_id)["status"] == "stopped"


def test_down_from_another_terminal_while_loading(cluster: SshCluster) -> None:
    up = cluster.sparkctl.start("up", *cluster.unprobed(2))
    wait_for_kind(cluster, "node2", "engine")
    assert cluster.sparkctl.run("down").exit_code == 0
    done = up.wait(60)
    assert_one_clear_error(done, "was stopped by somebody else", exit_code=6)
    cluster.assert_nothing_left()


def test_two_ups_at_once(cluster: SshCluster) -> None:
    """Exactly one wins; the other is refused and leaves nothing. Then Ctrl-C ends the winner's launch."""
    both = [cluster.sparkctl.start("up", *cluster.unprobed(2)) for _ in range(2)]
    deadline = time.monotonic() + 60
    while not (losers := [up for up in both if "error:" in up.stderr]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert losers, both[0].output
    loser = losers[0]
    refused = loser.wait(60)
    (winner,) = [up for up in both if up is not loser]
    assert_one_clear_error(refused, "is still alive", exit_code=5)
    winner.wait_for("importing the engine", 60)
    for name in ("node1", "node2"):
        find(cluster.hosts[name], "supervisor")
    interrupt(winner)
    done = winner.wait(60)
    assert_one_clear_error(done, "interrupted before the cluster was ready", exit_code=130)
    cluster.assert_nothing_left()


def interrupt(process: Running) -> None:
    process.send_interrupt()


def test_ctrl_c_at_any_moment_of_the_start(cluster: SshCluster) -> None:
    """Also while a node is just being started: nothing may stay behind."""
    for delay_s in (0.4, 0.8, 1.1, 1.4, 1.8):
        up = cluster.sparkctl.start("up", *cluster.unprobed(2))
        time.sleep(delay_s)
        interrupt(up)
        done = up.wait(60)
        assert done.exit_code == 130 and "Traceback" not in done.output, done.output
        cluster.assert_nothing_left()


def test_ctrl_c_during_the_all_reduces(cluster: SshCluster) -> None:
    """The ranks of the probe end with it, and no run was recorded."""
    up = cluster.sparkctl.start("up", *cluster.inputs(2))
    up.wait_for("all-reduces between 2 nodes", 60)
    wait_for_rank_of_probe(cluster)
    interrupt(up)
    done = up.wait(60)
    assert done.exit_code == 130 and "Traceback" not in done.output, done.output
    cluster.assert_nothing_left()


def wait_for_rank_of_probe(cluster: SshCluster) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        argvs = [process.argv for host in cluster.hosts.nodes for process in host.processes()]
        if any("torch.distributed" in " ".join(argv) for argv in argvs):
            return
        time.sleep(0.02)
    raise AssertionError("no rank of the probe was started")

"""The life of a run on three nodes over SSH: up, chat, status, logs, a lost launcher, a full disk, a lost
supervisor, down. One cluster for all of it, in this order."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from pathlib import Path

import httpx
import pytest

from tests.cluster.sparkctl_process import assert_one_clear_error
from tests.cluster.ssh_cluster import SshCluster, find, kind_of, state_path, wait_until_empty
from tests.hosts import NETNS_MARKS

pytestmark = [*NETNS_MARKS, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]

BODY = {"model": "tiny-qwen3", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}


def test_the_life_of_a_run(cluster: SshCluster) -> None:
    mount_small_disk(cluster, "node2")
    follower = cluster.sparkctl.follow(*cluster.inputs(3))
    (run_id,) = cluster.sparkctl.run_ids()
    check_links_were_tried(cluster, run_id, follower.stderr)
    key = read_key(cluster, run_id)
    check_key_is_needed(cluster, key)
    check_key_is_hidden(cluster, run_id, key)
    check_status_and_logs(cluster, run_id, key)
    os.kill(follower.pid, signal.SIGKILL)
    follower.wait(60)
    check_a_fresh_process_knows_the_run(cluster, run_id)
    check_a_second_up_is_refused(cluster, run_id)
    check_a_full_disk_ends_nothing(cluster, key)
    check_a_lost_supervisor(cluster, run_id)
    down = cluster.sparkctl.run("down")
    assert down.exit_code == 0 and down.seconds < 30, down.output
    cluster.assert_nothing_left()
    assert not key_path(cluster, run_id).exists()


def mount_small_disk(cluster: SshCluster, name: str) -> None:
    host = cluster.hosts[name]
    state_path(host).mkdir(parents=True, exist_ok=True)
    mounted = host.exec(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(state_path(host))])
    assert mounted.returncode == 0, mounted.stderr


def check_links_were_tried(cluster: SshCluster, run_id: str, told: str) -> None:
    """All-reduces ran between the nodes before anything was started."""
    tried, started = told.index("gloo all-reduce from 4 B to 256 MiB works"), told.index("starting 3 node(s)")
    assert tried < started
    assert cluster.sparkctl.record(run_id)["timings"]["collective_s"] > 0


def key_path(cluster: SshCluster, run_id: str) -> Path:
    return cluster.sparkctl.home / ".local/state/sparkctl/control" / run_id / "api.key"


def read_key(cluster: SshCluster, run_id: str) -> str:
    path = key_path(cluster, run_id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text().strip()


def chat(cluster: SshCluster, key: str | None, timeout_s: float = 60.0) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{cluster.address}/v1/chat/completions"
    return httpx.post(url, json=BODY, headers=headers, timeout=timeout_s, trust_env=False)


def check_key_is_needed(cluster: SshCluster, key: str) -> None:
    assert chat(cluster, None).status_code == 401
    assert chat(cluster, key + "x").status_code == 401
    answer = chat(cluster, key)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]


def check_key_is_hidden(cluster: SshCluster, run_id: str, key: str) -> None:
    """No other user can read it:
    not from a command line, an environment, a log, or a file that is not 0600.
    """
    secret = key.encode()
    for host in cluster.hosts.nodes:
        for process in host.processes():
            assert secret not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert secret not in Path(f"/proc/{process.pid}/environ").read_bytes()
        listing = host.exec(["grep", "-rlF", key, str(state_path(host))]).stdout.decode().split()
        names = {Path(path).name for path in listing}
        assert names <= {"node.json", "engine.yaml"}, names
        assert bool(names) == (host.name == "node1")
        for path in listing:
            assert host.exec(["stat", "-c", "%a", path]).stdout.strip() == b"600"
        run_dir = state_path(host) / "runs" / run_id
        assert host.exec(["stat", "-c", "%a", str(run_dir)]).stdout.strip() == b"700"


def check_status_and_logs(cluster: SshCluster, run_id: str, key: str) -> None:
    status = cluster.sparkctl.run("status", "--json")
    assert status.exit_code == 0, status.output
    told = status.json()
    assert [node["status"] for node in told["nodes"]] == ["serving"] * 3
    assert told["engine"]["version"] == "0.5.23" and "running" in told["metrics"]
    logs = cluster.sparkctl.run("logs", "--lines", "0")
    assert logs.exit_code == 0
    assert key not in logs.output and "api_key" in logs.stdout and "***" in logs.stdout
    for name in ("node1", "node2", "node3"):
        assert re.search(rf"^{name} +\| .*Load weight end", logs.stdout, re.MULTILINE), name
    only = cluster.sparkctl.run("logs", "--node", "node3", "--lines", "5")
    assert len(only.stdout.splitlines()) == 5
    assert all(line.startswith("node3") for line in only.stdout.splitlines())
    wrong = cluster.sparkctl.run("logs", "--node", "node9")
    assert_one_clear_error(wrong, "node9", "node1, node2, node3", exit_code=2)


def check_a_fresh_process_knows_the_run(cluster: SshCluster, run_id: str) -> None:
    status = cluster.sparkctl.run("status")
    assert status.exit_code == 0 and f"run {run_id}" in status.stdout, status.output
    assert status.stdout.count("serving") >= 4


def check_a_second_up_is_refused(cluster: SshCluster, run_id: str) -> None:
    before = pids_of_the_run(cluster)
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, run_id, "is still alive", "--replace", exit_code=5)
    assert len(before) >= 9 and before == pids_of_the_run(cluster)


def pids_of_the_run(cluster: SshCluster) -> set[int]:
    """Supervisor, main process, scheduler, detokenizer of each node; not what answers a request just now."""
    everything = [(host, process) for host in cluster.hosts.nodes for process in host.processes()]
    return {process.pid for host, process in everything if kind_of(process, host) != "other"}


def check_a_full_disk_ends_nothing(cluster: SshCluster, key: str) -> None:
    node2 = cluster.hosts["node2"]
    ballast = f"{state_path(node2)}/ballast"
    node2.exec(["dd", "if=/dev/zero", f"of={ballast}", "bs=64k"])
    scheduler = find(node2, "scheduler")
    os.kill(scheduler.pid, signal.SIGSTOP)  # a change of state that cannot be saved
    time.sleep(1.5)
    os.kill(scheduler.pid, signal.SIGCONT)
    time.sleep(1.5)
    assert chat(cluster, key).status_code == 200
    assert cluster.sparkctl.run("status").exit_code == 0


def check_a_lost_supervisor(cluster: SshCluster, run_id: str) -> None:
    """Its engine dies with it, its peers notice; the disk of that node is still full."""
    node2 = cluster.hosts["node2"]
    os.kill(find(node2, "supervisor").pid, signal.SIGKILL)
    for host in cluster.hosts.nodes:
        wait_until_empty(host, 60)
    status = cluster.sparkctl.run("status")
    assert status.exit_code == 6, status.output
    lines = {line.split()[0]: line for line in status.stdout.splitlines() if line.startswith("  node")}
    assert all("dead" in line for line in lines.values()), status.output
    assert "node2" in lines["node1"] and "supervisor ended without a word" in lines["node1"]
    assert "Traceback" not in status.output

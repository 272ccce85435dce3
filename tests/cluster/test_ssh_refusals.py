"""What can be known before anything is started is refused before anything is started: one error, one next
step.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from tests.cluster.sparkctl_process import assert_one_clear_error
from tests.cluster.ssh_cluster import API_PORT, SshCluster, state_path
from tests.hosts import NETNS_MARKS
from tests.hosts.ssh_files import make_key

pytestmark = [*NETNS_MARKS, pytest.mark.sglang, pytest.mark.timeout(120)]


def test_a_wrong_key(cluster: SshCluster, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    cluster.write_topology(node2={"ssh": {"identity_file": str(key)}})
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, "node2", exit_code=4)
    assert "ssh" in done.stderr
    cluster.assert_nothing_left()


def test_an_unknown_host_key(cluster: SshCluster) -> None:
    node2 = cluster.hosts["node2"].address
    lines = cluster.hosts.known_hosts.read_text().splitlines(keepends=True)
    cluster.hosts.known_hosts.write_text("".join(line for line in lines if not line.startswith(node2)))
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, "node2", "SHA256:", "--accept-new-host-keys", exit_code=4)
    cluster.assert_nothing_left()


def test_a_closed_port_on_two_nodes_is_one_error(cluster: SshCluster) -> None:
    cluster.write_topology(node2={"ssh": {"port": 2299}}, node3={"ssh": {"port": 2299}})
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, "node2", "node3", "2299", "refused", exit_code=4)
    cluster.assert_nothing_left()


def test_a_model_that_is_missing_on_one_node(cluster: SshCluster) -> None:
    cluster.write_topology(node3={"paths": {"models": "/nowhere"}})
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, "node3", "/nowhere/tiny-qwen3", "no such directory", exit_code=5)
    assert "node1" not in done.stderr.split("error:")[1].splitlines()[0]
    cluster.assert_nothing_left()


def test_a_model_with_a_missing_shard_on_one_node(cluster: SshCluster, tmp_path: Path) -> None:
    shutil.copytree(cluster.models / "tiny-qwen3", tmp_path / "tiny-qwen3")
    (tmp_path / "tiny-qwen3" / "model.safetensors").unlink()
    cluster.write_topology(node2={"paths": {"models": str(tmp_path)}})
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, "node2", "safetensors", exit_code=5)
    cluster.assert_nothing_left()


def test_an_occupied_api_port(cluster: SshCluster) -> None:
    head = cluster.hosts.nodes[0]
    head.exec(["sh", "-c", f"nohup python3 -m http.server -b {head.address} {API_PORT} >/dev/null 2>&1 &"])
    deadline = time.monotonic() + 60
    while API_PORT not in head.listening_ports() and time.monotonic() < deadline:
        time.sleep(0.05)
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, "node1", str(API_PORT), "must be free", "ss -ltnp", exit_code=5)


@pytest.mark.timeout(240)
def test_a_slow_link(cluster: SshCluster) -> None:
    """Everything answers, and the all-reduces between the nodes crawl: known before any weight is loaded.
    What could not be looked at on the way is told too.
    """
    node2, node3 = cluster.hosts["node2"], cluster.hosts["node3"]
    hidden = str(shutil.which("ip"))
    assert node3.exec(["mount", "--bind", "/dev/null", hidden]).returncode == 0
    slow_down = "tc qdisc replace dev fabric0 root tbf rate 20mbit burst 32kb latency 400ms"
    assert node2.exec(["sh", "-c", slow_down]).returncode == 0
    try:
        done = cluster.sparkctl.run("up", *cluster.inputs(3), timeout_s=110)
    finally:
        node2.exec(["tc", "qdisc", "del", "dev", "fabric0", "root"])
        node3.exec(["umount", hidden])
    assert_one_clear_error(done, "bus bandwidth at", "must be over", "collective", exit_code=5)
    assert re.search(r"^not checked: .*\bneighbours\b.*: node3: ", done.stderr, re.MULTILINE), done.stderr
    assert "all ranks have met" in done.stderr
    assert "starting 3 node(s)" not in done.stderr
    cluster.assert_nothing_left()


def test_a_full_disk(cluster: SshCluster) -> None:
    node2 = cluster.hosts["node2"]
    mount_state(cluster, "node2", "16m")
    node2.exec(["dd", "if=/dev/zero", f"of={state_path(node2)}/ballast", "bs=1M"])
    done = cluster.sparkctl.run("up", *cluster.inputs(3))
    assert_one_clear_error(done, "node2", "paths.state", exit_code=5)
    # Also where the check is skipped, the start itself says so, and the other nodes are ended again.
    skipped = cluster.sparkctl.run("up", "--skip", "state-directory", *cluster.inputs(3))
    assert_one_clear_error(skipped, "node2", "No space left on device", exit_code=5)
    cluster.assert_nothing_left()


def test_a_state_directory_that_is_read_only(cluster: SshCluster) -> None:
    mount_state(cluster, "node3", "1m,ro")
    done = cluster.sparkctl.run("up", "--skip", "state-directory", *cluster.inputs(3))
    assert_one_clear_error(done, "node3", "cannot be written", "paths.state", exit_code=5)
    cluster.assert_nothing_left()


def mount_state(cluster: SshCluster, name: str, options: str) -> None:
    host = cluster.hosts[name]
    state_path(host).mkdir(parents=True, exist_ok=True)
    mounted = host.exec(["mount", "-t", "tmpfs", "-o", f"size={options}", "tmpfs", str(state_path(host))])
    assert mounted.returncode == 0, mounted.stderr

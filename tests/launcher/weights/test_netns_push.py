"""Fetch, push, verify and status between real network namespaces over real SSH."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.connect import SshOptions, connect_all
from launcher.errors import SparkctlError
from launcher.node.facts_storage import storage_facts
from launcher.node.probe_root import ProbeRoot
from launcher.node.weights_manifest import MANIFEST_NAME, PARTIAL_SUFFIX
from launcher.topology import Node
from launcher.weights.fetch import adopt
from launcher.weights.follow import Progress, Tell
from launcher.weights.push import Push, PushResult, push
from launcher.weights.verify import NodeWeights, verify
from tests.hosts import NETNS_MARKS, HostSpec, NetnsHosts, NetnsNode
from tests.launcher.doctor.netns_cluster import netns_topology
from tests.launcher.weights.checkpoints import INDEX, SHARDS, write_checkpoint, write_shard

pytestmark = [*NETNS_MARKS, pytest.mark.timeout(60)]
ENGRAM, DRAFT = "model-00004-of-00004.safetensors", "model-00003-of-00004.safetensors"
SLOW = [
    "tc",
    "qdisc",
    "add",
    "dev",
    "fabric0",
    "root",
    "tbf",
    "rate",
    "30mbit",
    "burst",
    "64kb",
    "latency",
    "200ms",
]
NUM_FILES = len(SHARDS) + 3


def nobody(seen: Progress) -> None:
    pass


class Cluster:
    """Three nodes; node1 has the checkpoint, node2 logs in as another user with another home."""

    def __init__(self, hosts: NetnsHosts) -> None:
        self.hosts = hosts
        self.nodes: tuple[Node, ...] = netns_topology(hosts).nodes

    def models(self, name: str) -> Path:
        return self.hosts[name].home / "models"

    def adopt(self, source: str = "m") -> None:
        with connect_all(self.nodes[:1], SshOptions()) as remotes:
            adopt(self.nodes[0], "m", source, remotes["node1"], nobody)

    def push(self, *, leave_out: tuple[str, ...] = (), tell: Tell = nobody, streams: int = 4) -> PushResult:
        job = Push(source=self.nodes[0], targets=self.nodes[1:], model_path="m", leave_out=leave_out,
                   num_streams=streams)  # fmt: skip
        with connect_all(self.nodes, SshOptions(connect_timeout_s=3.0)) as remotes:
            return push(job, remotes, tell)

    def states(self, *, quick: bool = True) -> list[NodeWeights]:
        with connect_all(self.nodes, SshOptions()) as remotes:
            return verify(self.nodes, remotes, "m", nobody, quick=quick)


@pytest.fixture(scope="module")
def hosts() -> Iterator[NetnsHosts]:
    specs = [HostSpec(name="node1"), HostSpec(name="node2", user="ann", port=2222), HostSpec(name="node3")]
    with NetnsHosts(specs=specs) as hosts:
        yield hosts


def list_left(hosts: NetnsHosts) -> list[object]:
    """Processes and listening ports of the nodes."""
    return [left for node in hosts.nodes for left in (*node.processes(), *node.listening_ports())]


@pytest.fixture
def cluster(hosts: NetnsHosts) -> Iterator[Cluster]:
    cluster = Cluster(hosts)
    write_checkpoint(cluster.models("node1") / "m")
    yield cluster
    for node in hosts.nodes:
        for name in ("models", ".cache"):
            shutil.rmtree(node.home / name, ignore_errors=True)
    # What is left meets the end of its stdin now; a node whose cable was cut in the middle of a request ends
    # after 45 s without the rest of it, and its port is closed a moment after it.
    deadline = time.monotonic() + 90
    while (left := list_left(hosts)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def refusal(call: Callable[[], object]) -> SparkctlError:
    with pytest.raises(SparkctlError) as caught:
        call()
    return caught.value


def nothing_looks_whole(cluster: Cluster, name: str, wrong: str) -> None:
    target = cluster.models(name) / "m"
    assert not (target / wrong).exists()
    manifest = target / MANIFEST_NAME
    assert not manifest.exists() or json.loads(manifest.read_bytes())["complete"] is False


def test_a_checkpoint_arrives_whole_on_every_node(cluster: Cluster) -> None:
    cluster.adopt()
    phases: set[tuple[str, str]] = set()
    result = cluster.push(tell=lambda seen: phases.add((seen.node, seen.phase)))
    expected = content(cluster.models("node1") / "m")
    assert len(expected) == NUM_FILES
    for name in ("node2", "node3"):
        assert content(cluster.models(name) / "m") == expected
        assert result.received[name].num_received == NUM_FILES
        assert result.received[name].received_bytes == sum(map(len, expected.values()))
        assert (name, "receive") in phases
    assert [item.state for item in cluster.states(quick=False)] == ["complete"] * 3
    again = cluster.push()
    assert [item.num_received for item in again.received.values()] == [0, 0]
    assert [stock.num_present for stock in again.stocks.values()] == [NUM_FILES] * 2


def test_parts_are_left_out_by_a_rewritten_index(cluster: Cluster) -> None:
    cluster.adopt()
    result = cluster.push(leave_out=("engram", "draft"))
    assert result.files.left_out == ("draft", "engram")
    target = cluster.models("node2") / "m"
    assert not (target / ENGRAM).exists() and not (target / DRAFT).exists()
    index = json.loads((target / INDEX).read_bytes())
    assert set(index["weight_map"].values()) == set(SHARDS) - {ENGRAM, DRAFT}
    sizes = [sum(SHARDS[name].values()) for name in set(SHARDS) - {ENGRAM, DRAFT}]
    assert index["metadata"]["total_size"] == sum(sizes)
    states = cluster.states(quick=False)
    assert [item.state for item in states] == ["complete"] * 3
    assert [item.left_out for item in states] == [(), ("draft", "engram"), ("draft", "engram")]
    cluster.push()  # all of it after all: only what lacks
    assert content(target) == content(cluster.models("node1") / "m")


def test_engram_shards_stay_away_where_packed_files_serve_the_rows(cluster: Cluster, tmp_path: Path) -> None:
    """The recipe packs the rows: node2 (rank 1 of 3) has its file, node3 has not."""
    source = cluster.models("node1") / "m"
    (source / "config.json").write_text('{"model_type": "other", "text_config": {"engram_layer_ids": [1]}}')
    packed = cluster.hosts["node2"].home / "packed"
    packed.mkdir()
    (packed / "layer-01.rank-1of3.engram").touch()
    cluster.adopt()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    topology = tmp_path / "topology.yaml"
    spec = netns_topology(cluster.hosts).model_dump(mode="json", exclude_unset=True)
    for node in spec["nodes"]:
        node["paths"]["engram"] = "~"
    topology.write_text(yaml.safe_dump(spec))
    common = ["--recipe", str(recipe), "--topology", str(topology)]

    def push(*words: str) -> str:
        argv = [sys.executable, "-m", "launcher", "weights", "push", *common, *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout

    try:
        said = push()
        reduced, whole = (cluster.models(name) / "m" for name in ("node2", "node3"))
        assert not (reduced / ENGRAM).exists() and (reduced / DRAFT).exists()
        assert content(whole) == content(source)
        assert f"ok: node2: {NUM_FILES - 1} files without engram" in said
        assert "node3: 7 files, " in said and "1 of 1 packed files are missing: layer-01.rank-2of3" in said
        facts = [storage_of(path) for path in (source, reduced, whole)]
        assert [item["left_out"] for item in facts] == [[], ["engram"], []]
        assert facts[0]["hashes"] == facts[1]["hashes"] == facts[2]["hashes"]  # the check same-model
        states = cluster.states()
        locked = json.loads((source / MANIFEST_NAME).read_bytes())["files"]
        told = json.loads((reduced / MANIFEST_NAME).read_bytes())
        here = {name: entry["sha256"] for name, entry in told["files"].items()} | told["whole"]
        assert here == {name: entry["sha256"] for name, entry in locked.items()}
        assert [item.state for item in states] == ["complete"] * 3
        (reduced / INDEX).write_bytes((reduced / INDEX).read_bytes() + b" ")
        assert storage_of(reduced)["hashes"][INDEX] != facts[0]["hashes"][INDEX]  # no longer the one it wrote
        after = json.loads(push("--whole", "--json"))["nodes"]
        assert (after["node2"]["left_out"], after["node2"]["num_received"]) == ([], 2)
        assert content(reduced) == content(source)
        assert "they are there already" in push()
        assert content(reduced) == content(source)
    finally:
        shutil.rmtree(packed)


RECIPE = {
    "schema_version": 1,
    "name": "packed",
    "model": {"path": "m", "served_name": "m"},
    "engine": {"runtime": "cpu"},
    "parallelism": {"nodes": 3, "tp": 3},
    "extensions": {"engram": {"residence": "nvme", "packed_path": "packed"}},
}


def storage_of(model: Path) -> dict[str, Any]:
    """What doctor's probe says of that directory."""
    paths = {"models": str(model.parent)}
    found = storage_facts(ProbeRoot(), paths=paths, home=str(model.parent), model_path=model.name)["model"]
    assert isinstance(found, dict)
    return found


def test_what_is_there_by_hash_is_not_copied(cluster: Cluster) -> None:
    cluster.adopt()
    source = cluster.models("node1") / "m"
    big, other = sorted(SHARDS)[1], sorted(SHARDS)[0]
    target = cluster.models("node3") / "m"
    target.mkdir(parents=True)
    shutil.copy(source / other, target / other)  # by hand, before
    sha256 = hashlib.sha256((source / big).read_bytes()).hexdigest()
    blob = cluster.hosts["node3"].home / ".cache/huggingface/hub/models--x--y/blobs" / sha256
    blob.parent.mkdir(parents=True)
    shutil.copy(source / big, blob)
    result = cluster.push()
    assert (result.stocks["node3"].num_present, result.stocks["node3"].num_linked) == (1, 1)
    assert result.received["node3"].num_received == NUM_FILES - 2
    assert (target / big).stat().st_ino == blob.stat().st_ino
    assert content(target) == content(source)


def test_a_blob_that_lies_about_its_hash_is_not_linked(cluster: Cluster) -> None:
    cluster.adopt()
    source = cluster.models("node1") / "m"
    big = sorted(SHARDS)[1]
    sha256 = hashlib.sha256((source / big).read_bytes()).hexdigest()
    blob = cluster.hosts["node3"].home / ".cache/huggingface/hub/models--x--y/blobs" / sha256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes((source / big).stat().st_size))
    result = cluster.push()
    assert result.stocks["node3"].num_linked == 0
    assert content(cluster.models("node3") / "m") == content(source)


def test_files_of_equal_content_cross_once(cluster: Cluster) -> None:
    source = cluster.models("node1") / "m"
    (source / "draft").mkdir()
    shutil.copy(source / DRAFT, source / "draft" / "model.safetensors")
    cluster.adopt()
    result = cluster.push()
    target = cluster.models("node2") / "m"
    assert content(target) == content(source)
    assert (target / DRAFT).stat().st_ino == (target / "draft" / "model.safetensors").stat().st_ino
    size = (source / DRAFT).stat().st_size
    assert result.received["node2"].received_bytes == result.files.total_bytes - size


def test_a_cut_push_goes_on_where_it_ended(cluster: Cluster) -> None:
    cluster.adopt()
    source, target = cluster.models("node1") / "m", cluster.models("node3") / "m"
    target.mkdir(parents=True)
    big = sorted(SHARDS)[1]
    half = (source / big).read_bytes()[: 1 << 20]
    (target / f".{big}{PARTIAL_SUFFIX}").write_bytes(half)
    result = cluster.push()
    assert result.stocks["node3"].needed_bytes == result.files.total_bytes - len(half)
    assert result.received["node3"].received_bytes == result.files.total_bytes - len(half)
    assert content(target) == content(source)
    assert not list(target.glob(f".*{PARTIAL_SUFFIX}"))


def test_a_partial_file_of_something_else_is_started_anew(cluster: Cluster) -> None:
    cluster.adopt()
    target = cluster.models("node3") / "m"
    target.mkdir(parents=True)
    (target / f".{sorted(SHARDS)[1]}{PARTIAL_SUFFIX}").write_bytes(b"x" * 5000)
    cluster.push()
    assert content(target) == content(cluster.models("node1") / "m")


def test_a_killed_receiver_leaves_nothing_that_looks_whole(cluster: Cluster) -> None:
    """kill -9 in the middle, over a slow link; then the same push again."""
    cluster.adopt()
    assert cluster.hosts["node1"].exec(SLOW).returncode == 0
    victim = cluster.hosts["node3"]
    partial = cluster.models("node3") / "m" / f".{sorted(SHARDS)[1]}{PARTIAL_SUFFIX}"

    def kill() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and (not partial.exists() or partial.stat().st_size < 300_000):
            time.sleep(0.01)
        victim.exec(["sh", "-c", "kill -9 $(pgrep -f sparkctl-node)"])

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        error = refusal(cluster.push)
    finally:
        killer.join()
        cluster.hosts["node1"].exec(["tc", "qdisc", "del", "dev", "fabric0", "root"])
    assert error.node == "node3"
    assert "an end without one" in error.message
    nothing_looks_whole(cluster, "node3", sorted(SHARDS)[1])
    assert cluster.states()[2].state == "partial"
    result = cluster.push()
    assert result.received["node3"].received_bytes < result.files.total_bytes
    assert content(cluster.models("node3") / "m") == content(cluster.models("node1") / "m")


def test_full_disks_are_named_with_both_numbers_before_a_byte_moves(cluster: Cluster) -> None:
    cluster.adopt()
    ill = [cluster.hosts["node2"], cluster.hosts["node3"]]
    for node in ill:
        small_disk(node, "2m")
    try:
        error = refusal(cluster.push)
    finally:
        for node in ill:
            node.exec(["umount", f"{node.home_inside}/models"])
    total = sum(len(data) for data in content(cluster.models("node1") / "m").values())
    assert error.exit_code == 5
    assert error.message.count(f"needs {total} bytes") == 2
    assert "node2" in error.message and "node3" in error.message and "free" in error.message


def small_disk(node: NetnsNode, size: str) -> None:
    place = f"{node.home_inside}/models"
    done = node.exec(
        ["sh", "-c", f"mkdir -p {place} && mount -t tmpfs -o size={size},mode=777 tmpfs {place}"]
    )
    assert done.returncode == 0, done.stderr


def test_a_disk_that_fills_under_the_copy_keeps_what_is_there(cluster: Cluster) -> None:
    """Room when asked, none later: another process takes it, here when some bytes have arrived."""
    cluster.adopt()
    assert cluster.hosts["node1"].exec(SLOW).returncode == 0
    ill = cluster.hosts["node3"]
    small_disk(ill, "90m")
    place = f"{ill.home_inside}/models"
    find = f"find {place} -name '.model*{PARTIAL_SUFFIX}' -size +200k"
    script = f'until [ -n "$({find})" ]; do sleep 0.05; done; cat /dev/zero > {place}/hog'
    hog = threading.Thread(target=ill.exec, args=(["sh", "-c", script],))
    hog.start()
    try:
        error = refusal(cluster.push)
        listing = ill.exec(["ls", "-A", f"{place}/m"]).stdout.decode()
        ill.exec(["rm", f"{place}/hog"])
        cluster.hosts["node1"].exec(["tc", "qdisc", "del", "dev", "fabric0", "root"])
        result = cluster.push()
        states = cluster.states(quick=False)
    finally:
        hog.join()
        cluster.hosts["node1"].exec(["tc", "qdisc", "del", "dev", "fabric0", "root"])
        ill.exec(["umount", place])
    assert error.node == "node3"
    assert "No space left on device" in error.message
    assert PARTIAL_SUFFIX in listing
    assert 0 < result.received["node3"].received_bytes < result.files.total_bytes
    assert [item.state for item in states] == ["complete"] * 3


def test_the_commands_from_end_to_end(cluster: Cluster, tmp_path: Path) -> None:
    """As a user types them; page cache measured by fincore in the node."""
    topology = tmp_path / "topology.yaml"
    spec = netns_topology(cluster.hosts).model_dump(mode="json", exclude_unset=True)
    topology.write_text(yaml.safe_dump(spec))

    def sparkctl(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "launcher", "weights", verb, *words]
        argv += ["--topology", str(topology), "--model-path", "m"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert "every sha256 known" in sparkctl("fetch", "--from", "m").stdout
    pushed = sparkctl("push", "--json")
    assert json.loads(pushed.stdout)["nodes"]["node2"]["num_received"] == NUM_FILES
    assert "node3: receive 100 %" in pushed.stderr and "MB/s" in pushed.stderr
    assert sparkctl("verify", "--quick").stdout.count(": complete") == 3
    shard = f"{cluster.hosts['node3'].home_inside}/models/m/{sorted(SHARDS)[1]}"
    node = cluster.hosts["node3"]
    node.exec(["cat", shard])
    fincore = ["fincore", "-b", "-n", "-o", "RES", shard]
    assert int(node.exec(fincore).stdout) > 0
    assert sparkctl("drop-cache").returncode == 0
    assert int(node.exec(fincore).stdout) == 0
    node.exec(["rm", shard])
    bad = sparkctl("verify", "--quick")
    assert bad.returncode == 5
    assert "node3: partial" in bad.stdout and f"{sorted(SHARDS)[1]}: missing" in bad.stdout
    assert "-> sparkctl weights push --from NODE" in bad.stderr
    status = sparkctl("status", "--json")
    assert [item["state"] for item in json.loads(status.stdout)] == ["complete", "complete", "partial"]
    wrong = sparkctl("push", "--from", "node9")
    assert (wrong.returncode, "got 'node9'" in wrong.stderr) == (2, True)


def test_a_read_only_home_is_refused(cluster: Cluster) -> None:
    cluster.adopt()
    ill = cluster.hosts["node3"]
    small_disk(ill, "1m,ro")
    try:
        error = refusal(cluster.push)
    finally:
        ill.exec(["umount", f"{ill.home_inside}/models"])
    assert error.node == "node3"
    assert "must be a directory that can be written, got: Read-only file system" in error.message


def test_a_shard_that_changed_after_hashing_is_refused(cluster: Cluster) -> None:
    cluster.adopt()
    shard = sorted(SHARDS)[1]
    write_shard(cluster.models("node1") / "m" / shard, SHARDS[shard], seed=1)
    error = refusal(cluster.push)
    assert error.node == "node1"
    assert f"{shard} must have sha256" in error.message and "as when it was fetched" in error.message
    assert not (cluster.models("node3") / "m").exists()


def test_a_shard_that_changes_under_the_copy_is_refused(cluster: Cluster) -> None:
    """Over a slow link, rewritten in place when a part of it has arrived."""
    cluster.adopt()
    shard = sorted(SHARDS)[1]
    assert cluster.hosts["node1"].exec(SLOW).returncode == 0
    partial = cluster.models("node3") / "m" / f".{shard}{PARTIAL_SUFFIX}"
    before = (cluster.models("node1") / "m" / shard).read_bytes()

    def change() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and (not partial.exists() or partial.stat().st_size < 300_000):
            time.sleep(0.01)
        write_shard(cluster.models("node1") / "m" / shard, SHARDS[shard], seed=1)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        error = refusal(cluster.push)
    finally:
        changer.join()
        cluster.hosts["node1"].exec(["tc", "qdisc", "del", "dev", "fabric0", "root"])
    assert f"{shard} must stay as it is while it is copied, got a change on node1" in error.message
    nothing_looks_whole(cluster, "node3", shard)
    arrived = cluster.models("node2") / "m" / shard  # node2 may have had all of it by then
    assert not arrived.exists() or arrived.read_bytes() == before


def test_a_shared_directory_is_not_pushed_onto_itself(cluster: Cluster) -> None:
    """node3 sees node1's models, as over NFS: leaving parts out would take them from the source."""
    cluster.adopt()
    shared = cluster.hosts["node3"]
    place = f"{shared.home_inside}/models"
    source = cluster.models("node1")
    done = shared.exec(["sh", "-c", f"mkdir -p {place} && mount --bind {source} {place}"])
    assert done.returncode == 0, done.stderr
    before = content(source / "m")
    try:
        error = refusal(lambda: cluster.push(leave_out=("engram",)))
    finally:
        shared.exec(["umount", place])
    assert error.node == "node3"
    assert "must be a directory of this node's own, got the source's" in error.message
    assert content(source / "m") == before
    assert cluster.states()[0].state == "complete"


def test_status_tells_complete_partial_different_and_absent(cluster: Cluster) -> None:
    cluster.adopt()
    assert [item.state for item in cluster.states()] == ["complete", "absent", "absent"]
    cluster.push()
    (cluster.models("node2") / "m" / DRAFT).unlink()
    shard = sorted(SHARDS)[1]
    with (cluster.models("node3") / "m" / shard).open("r+b") as file:
        file.seek(-8, 2)
        file.write(bytes(8))
    states = cluster.states()
    assert [item.state for item in states] == ["complete", "partial", "different"]
    assert states[1].reasons == (f"{DRAFT}: missing",)
    assert "changed since it was hashed" in states[2].reasons[0]
    full = cluster.states(quick=False)
    assert "sha256" in full[2].reasons[0] and shard in full[2].reasons[0]
    cluster.push()
    assert [item.state for item in cluster.states(quick=False)] == ["complete"] * 3


def test_a_cut_cable_ends_in_an_error_with_the_node(cluster: Cluster) -> None:
    cluster.adopt()
    cluster.hosts["node2"].unplug()
    try:
        error = refusal(cluster.push)
    finally:
        cluster.hosts["node2"].plug()
    assert error.node == "node2"

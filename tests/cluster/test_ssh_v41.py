"""A small V4.1 over SSH on two and three nodes: Engram rows from each node's own packed files, and SGLang's
own tables in memory, give the same greedy text.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cluster.sparkctl_process import assert_one_clear_error
from tests.cluster.ssh_cluster import API_PORT, SshCluster
from tests.cluster.test_local_v41 import ask
from tests.cluster.test_ssh_life import read_key
from tests.hosts import NETNS_MARKS
from tests.sgl_ext.engine_variables import KEEP_FREED_MEMORY

pytestmark = [*NETNS_MARKS, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]

QUESTIONS = ("one two three", "Which ranks are ready? " * 10)  # the second exceeds the sliding window
STOCK_TABLES = {"residence": "device", "packed_path": None}


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    """What each cluster said; filled by the tests, so that those of two and three nodes meet."""
    return {}


def engram_path(cluster: SshCluster, name: str) -> Path:
    return cluster.hosts[name].folder / "engram"


def serve(cluster: SshCluster, num_nodes: int, engram: dict[str, str | None]) -> list[str]:
    """Start, audit, ask, end."""
    address = cluster.hosts.nodes[0].address
    path = cluster.folder / "v41.yaml"
    document = {
        "schema_version": 1,
        "name": "v41",
        "extends": "local-v41",
        "parallelism": {"nodes": num_nodes, "tp": num_nodes},
        "extensions": {"engram": engram},
        "server": {"host": address, "port": API_PORT},
        "environment": KEEP_FREED_MEMORY,
        "limits": {"ready_timeout_s": 230},
    }
    path.write_text(yaml.safe_dump(document))
    words = ("--recipe", str(path), "--topology", str(cluster.topology))
    cluster.sparkctl.up(*words, "--skip", "collective")  # test_ssh_life tries those
    audit = cluster.sparkctl.run("audit")
    assert audit.exit_code == 0 and audit.stdout.count("as planned") == num_nodes, audit.output
    key = read_key(cluster, cluster.sparkctl.run_ids()[-1])
    found = [ask(cluster.address, question, key) for question in QUESTIONS]
    assert cluster.sparkctl.run("down").exit_code == 0
    cluster.assert_nothing_left()
    return found


@pytest.mark.parametrize("num_nodes", [2, 3])
def test_rows_from_disk_and_tables_in_memory_say_the_same(
    cluster: SshCluster, texts: dict[str, list[str]], num_nodes: int
) -> None:
    names = [host.name for host in cluster.hosts.nodes]
    cluster.write_topology(**{name: {"paths": {"engram": str(engram_path(cluster, name))}} for name in names})
    for rank, name in enumerate(names[:num_nodes]):
        out = engram_path(cluster, name) / f"tiny-v41/tp{num_nodes}"
        words = ("--checkpoint", str(cluster.models / "tiny-v41"), "--out", str(out), "--allow-buffered")
        packed = cluster.sparkctl.run(
            "engram", "pack", *words, "--tp", str(num_nodes), "--rank", str(rank)
        )  # each node has its own rank's files, and no other
        assert packed.exit_code == 0, packed.output
    texts[f"disk {num_nodes}"] = serve(cluster, num_nodes, {"packed_path": f"tiny-v41/tp{num_nodes}"})
    texts[f"memory {num_nodes}"] = serve(cluster, num_nodes, STOCK_TABLES)
    first = texts[f"disk {num_nodes}"]
    assert all(said == first for said in texts.values()), texts
    assert len(set(first)) == len(first)


def test_another_ranks_files_on_a_node_are_refused_before_the_start(cluster: SshCluster) -> None:
    """node2 has rank 0's files: `up` says which are missing there and prints the command that packs them."""
    engram = {name: cluster.folder / f"engram-{name}" for name in ("node1", "node2")}
    cluster.write_topology(**{name: {"paths": {"engram": str(path)}} for name, path in engram.items()})
    for path in engram.values():
        (path / "tp2").mkdir(parents=True)
        for layer in (1, 3):
            (path / f"tp2/layer-{layer:02d}.rank-0of2.engram").touch()
    recipe = cluster.folder / "wrong-rank.yaml"
    document = {
        "schema_version": 1,
        "name": "wrong-rank",
        "extends": "local-v41",
        "parallelism": {"nodes": 2, "tp": 2},
        "extensions": {"engram": {"packed_path": "tp2"}},
    }
    recipe.write_text(yaml.safe_dump(document))
    done = cluster.sparkctl.run("up", "--recipe", str(recipe), "--topology", str(cluster.topology))
    assert_one_clear_error(
        done, "node2", "layer-01.rank-1of2.engram", "on node2: sparkctl engram pack", "--ranks 1", exit_code=5
    )
    cluster.assert_nothing_left()

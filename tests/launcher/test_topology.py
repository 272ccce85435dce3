"""The topology model, its defaults and its rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from launcher.config_problem import dotted
from launcher.errors import ConfigError
from launcher.merge_maps import merge_maps
from launcher.read_topology import read_topology
from launcher.topology import Node, Topology, local_topology

TWO = """\
schema_version: 1
name: two
links: {layout: pair}
defaults:
  ssh: {user: nvidia, port: 2200}
  fabric: {interface: enp1s0f0np0, hcas: [rocep1s0f0]}
  environment: {A: a, B: b}
nodes:
  - name: a
    ssh: {host: 10.0.0.1}
    fabric: {address: 192.168.100.1}
  - name: b
    ssh: {host: 10.0.0.2, user: maria}
    fabric: {address: 192.168.100.2, interface: enp1s0f1np1, hcas: []}
    environment: {B: c}
"""


def node(index: int, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": f"n{index}",
        "ssh": {"host": f"10.0.0.{index}"},
        "fabric": {"address": f"192.168.100.{index}", "interface": "eth1"},
    }
    return merge_maps(base, changes)


def make(nodes: list[dict[str, Any]], layout: str = "switch", **links: Any) -> Topology:
    return Topology.model_validate(
        {"schema_version": 1, "name": "t", "links": {"layout": layout, **links}, "nodes": nodes}
    )


def problems(nodes: list[dict[str, Any]], layout: str = "switch", **links: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        make(nodes, layout, **links)
    (entry,) = caught.value.errors()
    return [(dotted(problem.at), problem.message) for problem in entry["ctx"]["problems"]]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    return path


def refuse(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_topology(path)
    return caught.value


def test_defaults_merge_key_by_key_into_each_node(tmp_path: Path) -> None:
    path = write(tmp_path, TWO)
    topology, provenance = read_topology(path)
    a, b = topology.resolved_nodes()
    assert isinstance(a, Node)
    assert (a.ssh.user, a.ssh.port, a.ssh.host) == ("nvidia", 2200, "10.0.0.1")
    assert (b.ssh.user, b.ssh.port, b.ssh.host) == ("maria", 2200, "10.0.0.2")
    assert (a.fabric.interface, a.fabric.hcas) == ("enp1s0f0np0", ("rocep1s0f0",))
    assert (b.fabric.interface, b.fabric.hcas) == ("enp1s0f1np1", ())
    assert b.environment == {"A": "a", "B": "c"}
    assert str(provenance["nodes", 0, "ssh", "user"]) == f"{path}:5:9"
    assert str(provenance["nodes", 1, "ssh", "user"]) == f"{path}:13:27"
    assert ("nodes", 0, "gpus") not in provenance


def test_round_trips_through_json(tmp_path: Path) -> None:
    topology, _ = read_topology(write(tmp_path, TWO))
    assert Topology.model_validate_json(topology.model_dump_json(by_alias=True)) == topology
    cabled = make([node(1), node(2)], "pair", cables=[{"from": "n1/eth1", "to": "n2/eth1"}])
    assert Topology.model_validate_json(cabled.model_dump_json()) == cabled


def test_bootstrap_interface_is_the_fabric_unless_named() -> None:
    assert make([node(1)]).nodes[0].fabric.bootstrap_interface == "eth1"
    lan = make([node(1, fabric={"socket_interface": "lan0"})])
    assert lan.nodes[0].fabric.bootstrap_interface == "lan0"


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 8])
def test_local_default_is_valid_and_apart(num_nodes: int) -> None:
    topology = local_topology(num_nodes)
    nodes = topology.resolved_nodes()
    assert [item.name for item in nodes] == [f"node-{index}" for index in range(num_nodes)]
    assert {item.connection for item in nodes} == {"local"}
    assert {item.fabric.address for item in nodes} == {"127.0.0.1"}
    assert len({item.paths.state for item in nodes}) == num_nodes
    assert nodes[0].paths.state == "~/.local/state/sparkctl/node-0"


@pytest.mark.parametrize("num_nodes", [0, 9])
def test_number_of_nodes_is_bounded(num_nodes: int) -> None:
    with pytest.raises(ValidationError):
        local_topology(num_nodes)


def test_duplicates_are_refused() -> None:
    assert problems([node(1), node(2, name="n1")]) == [
        ("nodes[1].name", "node names must differ, got 'n1' twice")
    ]
    assert problems([node(1), node(2, fabric={"address": "192.168.100.1"})]) == [
        ("nodes[1].fabric.address", "fabric addresses must differ, got 192.168.100.1 for n1 and for n2")
    ]
    assert problems([node(1), node(2, ssh={"host": "10.0.0.1", "port": 22})]) == [
        (
            "nodes[1].paths.state",
            "paths.state must differ for nodes on one host, got '~/.local/state/sparkctl' on 10.0.0.1 for n1 "
            "and n2",
        )
    ]


def test_one_host_with_two_ports_or_two_states_is_two_nodes() -> None:
    make([node(1), node(2, ssh={"host": "10.0.0.1", "port": 2222})])
    make([node(1), node(2, ssh={"host": "10.0.0.1"}, paths={"state": "/var/lib/two"})])


def test_local_nodes_must_not_share_their_state() -> None:
    local = {"connection": "local", "fabric": {"address": "127.0.0.1", "interface": "lo"}}
    found = problems([{"name": "a", **local}, {"name": "b", **local}], "loopback")
    assert [key for key, _ in found] == ["nodes[1].paths.state"]


@pytest.mark.parametrize(
    ("layout", "num_nodes", "is_good"),
    [("pair", 2, True), ("pair", 3, False), ("pair", 1, False), ("triangle", 3, True), ("triangle", 4, False),
     ("ring", 4, True), ("ring", 3, False), ("switch", 1, True), ("switch", 8, True)],
)  # fmt: skip
def test_layout_fixes_the_number_of_nodes(layout: str, num_nodes: int, is_good: bool) -> None:
    nodes = [node(index) for index in range(1, num_nodes + 1)]
    if is_good:
        assert make(nodes, layout).links.layout == layout
    else:
        (found,) = problems(nodes, layout)
        assert found[0] == "links.layout"
        assert f"got {num_nodes}" in found[1]


def test_loopback_layout_and_addresses_belong_together() -> None:
    assert problems([node(1)], "loopback") == [
        (
            "nodes[0].fabric.address",
            "fabric.address of n1 must be a loopback address with layout loopback, got 192.168.100.1",
        )
    ]
    (found,) = problems([node(1, fabric={"address": "127.0.0.1"})])
    assert "must be reachable from other nodes with layout switch" in found[1]


def test_connection_decides_about_the_ssh_host() -> None:
    lonely = {"name": "a", "fabric": {"address": "10.0.0.1", "interface": "e"}}
    (found,) = problems([lonely])
    assert found == (
        "nodes[0].ssh.host",
        "ssh.host must be set for node a, which is reached over ssh, got none",
    )
    (found,) = problems([node(1, connection="local")])
    assert "ssh.host must be absent for node n1" in found[1]


@pytest.mark.parametrize("path", ["$HOME/x", "relative/x", "~maria/x", "/a/../b"])
def test_paths_on_a_node_are_written_out(path: str) -> None:
    (found,) = problems([node(1, paths={"models": path})])
    assert found[0] == "nodes[0].paths.models"
    assert repr(path) in found[1]


def test_node_environment_has_the_rules_of_recipes() -> None:
    (found,) = problems([node(1, environment={"NCCL_IB_HCA": "x"})])
    assert found[0] == "nodes[0].environment.NCCL_IB_HCA"


def test_cables_join_two_known_nodes_once() -> None:
    nodes = [node(1), node(2)]
    make(nodes, cables=[{"from": "n1/e0", "to": "n2/e1"}, {"from": "n1/e1", "to": "n2/e0"}])
    assert (
        "NODE/INTERFACE of a node in this file, got 'n3/e0'"
        in problems(nodes, cables=[{"from": "n1/e0", "to": "n3/e0"}])[0][1]
    )
    assert (
        "must hold one cable, got 'n1/e0' twice"
        in problems(nodes, cables=[{"from": "n1/e0", "to": "n2/e0"}, {"from": "n1/e0", "to": "n2/e1"}])[0][1]
    )
    assert "must join two nodes" in problems(nodes, cables=[{"from": "n1/e0", "to": "n1/e1"}])[0][1]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        (
            "port: 2200",
            "prt: 2200",
            "defaults.ssh.prt must be a known key, got 'prt' ({file}:5:23).",
            "did you mean port?",
        ),
        ("defaults:", "default:", "default must be a known key", "did you mean defaults?"),
        ("port: 2200", "port: x", "defaults.ssh.port must be an integer, got 'x' ({file}:5:23).", ""),
        (
            "user: maria",
            "usr: maria",
            "nodes[1].ssh.usr must be a known key, got 'usr' ({file}:13:27).",
            "did you mean user?",
        ),
        (
            "address: 192.168.100.2",
            "address: spark-b",
            "fabric.address must be an IPv4 or IPv6 address, got 'spark-b' ({file}:14:14).",
            "",
        ),
        (
            "address: 192.168.100.2",
            "address: 192.168.100.1",
            "fabric addresses must differ, got 192.168.100.1 for a and for b ({file}:14:14).",
            "",
        ),
        ("layout: pair", "layout: par", "links.layout must be one of", "did you mean pair?"),
        ("name: b", "name: a", "node names must differ, got 'a' twice ({file}:12:5).", ""),
        (
            "defaults:\n",
            "defaults:\n  name: x\n",
            "defaults must not hold name, which differs from node to node, got 'x' ({file}:5:3).",
            "set name in each entry of nodes",
        ),
        (
            "{interface: enp1s0f0np0,",
            "{address: 10.0.0.1, interface: e,",
            "defaults must not hold fabric.address",
            "set fabric.address in each entry of nodes",
        ),
    ],
)  # fmt: skip
def test_file_errors_have_place_and_hint(tmp_path: Path, old: str, new: str, message: str, hint: str) -> None:
    assert old in TWO
    path = write(tmp_path, TWO.replace(old, new))
    error = refuse(path)
    assert message.format(file=path) in error.message
    assert hint in error.hint or f"Hint: {hint}" in error.message


def test_nodes_that_are_no_maps_are_named(tmp_path: Path) -> None:
    head = TWO[: TWO.index("nodes:")]
    assert "nodes[0] must be a map of keys, got 'a'" in refuse(write(tmp_path, head + "nodes: [a]\n")).message
    assert "nodes must be a list, got 'a'" in refuse(write(tmp_path, head + "nodes: a\n")).message
    assert "nodes must be set" in refuse(write(tmp_path, head)).message
    assert (
        "nodes must be a list of at least 1, got 0" in refuse(write(tmp_path, head + "nodes: []\n")).message
    )
    many = (
        head
        + "nodes:\n"
        + "".join(f"  - {{name: n{i}, fabric: {{address: 10.0.0.{i}}}}}\n" for i in range(9))
    )
    assert "nodes must be a list of at most 8, got 9" in refuse(write(tmp_path, many)).message
    text = TWO.replace("defaults:\n", "defaults: x\n_defaults:\n")
    assert "defaults must be a map of keys, got 'x'" in refuse(write(tmp_path, text)).message


@pytest.mark.parametrize("key", ["host", "user"])
@pytest.mark.parametrize("value", ["-oProxyCommand=x", "a b", "a\nb", ""])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(key: str, value: str) -> None:
    """`up` prints an ssh line to paste."""
    with pytest.raises(ValidationError, match=rf"nodes\.0\.ssh\.{key}"):
        make([node(1, ssh={key: value})])

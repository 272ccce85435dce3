"""sparkctl topology init | show, and what probed facts add to a draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launcher.cli.topology import app
from launcher.draft_topology import (
    NodeDraft,
    TopologyDraft,
    fill_from_facts,
    parse_node_specs,
    render_topology,
)
from launcher.errors import ConfigError, UsageError
from launcher.node_facts import GidFacts, HcaFacts, InterfaceFacts, NodeFacts
from launcher.read_topology import read_topology
from launcher.write_file import write_file

RUNNER = CliRunner()


def interface(name: str, address: str | None, speed_mbps: int | None, state: str = "up") -> InterfaceFacts:
    addresses = (address,) if address else ()
    return InterfaceFacts(name=name, addresses=addresses, mtu=9000, state=state, speed_mbps=speed_mbps)


def hca(name: str, netdev: str, state: str, address: str | None = None) -> HcaFacts:
    gids = (GidFacts(index=3, address=address),) if address else ()
    return HcaFacts(name=name, netdev=netdev, state=state, rocev2_gids=gids)


def spark(interfaces: tuple[InterfaceFacts, ...], hcas: tuple[HcaFacts, ...]) -> NodeFacts:
    """A probed node as far as `topology init` reads it."""
    unread: dict[str, Any] = {"memory_total_bytes": None, "memory_available_bytes": 0, "paths": {}}
    unread |= {
        "state_problem": None,
        "busy_ports": (),
        "live_runs": (),
        "model": None,
        "engine": {"problem": None},
    }
    return NodeFacts.model_validate(
        {
            "hostname": "spark",
            "user": "u",
            "home": "/home/u",
            "architecture": "aarch64",
            "kernel": "6",
            "boot_id": "b",
        }
        | {"interfaces": interfaces, "hcas": hcas}
        | unread
    )


ONE_CABLE = spark(
    (
        interface("lo", "127.0.0.1", None),
        interface("docker0", "172.17.0.1", 10000),
        interface("enP7s7", "192.168.1.11", 10000),
        interface("enp1s0f0np0", None, -1, state="down"),
        interface("enp1s0f1np1", "192.168.100.10", 200000),
        interface("enP2p1s0f1np1", "192.168.101.10", 200000),
    ),
    (
        hca("rocep1s0f0", "enp1s0f0np0", "1: DOWN"),
        hca("rocep1s0f1", "enp1s0f1np1", "4: ACTIVE", "192.168.100.10"),
        hca("roceP2p1s0f1", "enP2p1s0f1np1", "4: ACTIVE", "192.168.101.10"),
    ),
)


def test_init_writes_a_file_that_only_lacks_what_nobody_said(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    login = ["--user", "u", "--identity", "~/.ssh/k"]
    nodes = "a,maria@b.lan:2222,10.0.0.3"
    result = RUNNER.invoke(app, ["init", "--no-probe", "--nodes", nodes, *login, "--output", str(path)])
    assert result.exit_code == 0
    assert "fabric.address of a, fabric.interface of a, fabric.address of b" in result.output
    with pytest.raises(ConfigError) as caught:
        read_topology(path)
    assert "nodes[0].fabric.address must be text, got nothing" in caught.value.message
    assert caught.value.message.startswith(f"{path} has 6 problems")
    text = path.read_text()
    for index in range(3):
        text = text.replace("address:  # fill in", f"address: 10.9.0.{index}  #", 1)
    path.write_text(text.replace("interface:  # fill in", "interface: eth1  #"))
    topology, _ = read_topology(path)
    assert topology.name == "lab"
    assert [(node.name, node.ssh.host, node.ssh.port, node.ssh.user) for node in topology.nodes] == [
        ("a", "a", None, "u"),
        ("b", "b.lan", 2222, "maria"),
        ("node-2", "10.0.0.3", None, "u"),
    ]
    assert topology.nodes[0].ssh.identity_file == "~/.ssh/k"
    assert topology.links.layout == "switch"


def test_init_asks_when_no_nodes_are_given(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    answers = "a,b\nnvidia\n\npair\n192.168.100.1\nenp1s0f0np0\n192.168.100.2\nenp1s0f1np1\n"
    result = RUNNER.invoke(app, ["init", "--no-probe", "--output", str(path)], input=answers)
    assert result.exit_code == 0, result.output
    topology, _ = read_topology(path)
    assert topology.links.layout == "pair"
    assert [node.fabric.interface for node in topology.nodes] == ["enp1s0f0np0", "enp1s0f1np1"]
    assert {node.ssh.user for node in topology.nodes} == {"nvidia"}


def test_init_checks_complete_answers_before_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    answers = "a,b\n\n\npair\n192.168.100.1\neth1\n192.168.100.1\neth1\n"
    result = RUNNER.invoke(app, ["init", "--no-probe", "--output", str(path)], input=answers)
    assert isinstance(result.exception, ConfigError)
    assert "fabric addresses must differ" in result.exception.message
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "a,b,c", "--layout", "pair"], "links.layout pair must have 2 nodes, got 3"),
        (["--nodes", "a,b@a"], "paths.state must differ for nodes on one host"),
        (
            ["--nodes", ",".join(f"n{index}" for index in range(9))],
            "nodes must be a list of at most 8, got 9",
        ),
    ],
)
def test_init_checks_incomplete_answers_too(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = tmp_path / "t.yaml"
    result = RUNNER.invoke(app, ["init", "--no-probe", *arguments, "--output", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert message in result.exception.message
    assert not path.exists()


def test_init_refuses_an_unknown_layout_in_the_wizard(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    result = RUNNER.invoke(app, ["init", "--no-probe", "--output", str(path)], input="a,b\n\n\npar\n\n\n\n\n")
    assert isinstance(result.exception, ConfigError)
    assert "links.layout must be one of" in result.exception.message
    assert not path.exists()


def test_init_keeps_an_existing_file_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("mine")
    arguments = ["init", "--no-probe", "--nodes", "a", "--output", str(path)]
    result = RUNNER.invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    assert path.read_text() == "mine"
    assert RUNNER.invoke(app, [*arguments, "--force"]).exit_code == 0
    assert path.read_text() != "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.yaml"]


def test_init_to_standard_output_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["init", "--no-probe", "--nodes", "a,b", "--output", "-"])
    assert "layout: pair" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nodes", ["", "a,,b", "a b", "a:b", "user@", "a:123456"])
def test_bad_nodes_are_refused(nodes: str) -> None:
    with pytest.raises(UsageError, match="--nodes must be"):
        parse_node_specs(nodes)


def test_node_names_stay_apart() -> None:
    names = [draft.name for draft in parse_node_specs("spark.a.lan,spark.b.lan,10.0.0.1,[fe80::1]:22")]
    assert names == ["spark", "spark-1", "node-2", "node-3"]


def test_facts_fill_in_the_cabled_ports_of_that_node() -> None:
    filled = fill_from_facts(NodeDraft(name="a", host="a"), ONE_CABLE, layout="pair")
    assert (filled.address, filled.interface) == ("192.168.100.10", "enp1s0f1np1")
    assert filled.hcas == ("rocep1s0f1", "roceP2p1s0f1")
    assert filled.socket_interface is None


def test_facts_without_a_switch_meet_on_the_lan() -> None:
    filled = fill_from_facts(NodeDraft(name="a", host="a"), ONE_CABLE, layout="triangle")
    assert filled.socket_interface == "enP7s7"


def test_what_the_user_said_stays() -> None:
    draft = NodeDraft(name="a", host="a", interface="enP7s7", hcas=("mlx5_0",))
    filled = fill_from_facts(draft, ONE_CABLE, layout="switch")
    assert (filled.address, filled.interface, filled.hcas) == ("192.168.1.11", "enP7s7", ("mlx5_0",))


def test_a_node_without_rdma_gets_its_fastest_wired_interface() -> None:
    plain = spark((interface("lo", "127.0.0.1", None), interface("eth0", "10.0.0.5", 1000)), ())
    filled = fill_from_facts(NodeDraft(name="a", host="a"), plain, layout="switch")
    assert (filled.address, filled.interface, filled.hcas) == ("10.0.0.5", "eth0", ())
    nothing = fill_from_facts(NodeDraft(name="a", host="a"), spark((), ()), layout="switch")
    assert TopologyDraft(name="t", layout="switch", nodes=(nothing,)).missing()


def test_odd_values_are_quoted(tmp_path: Path) -> None:
    node = NodeDraft(name="a", host="fe80::1", user="no", address="::1", interface="12")
    draft = TopologyDraft(name="t", layout="switch", nodes=(node,), identity_file="~/my key: #1")
    path = tmp_path / "t.yaml"
    write_file(path, render_topology(draft).replace("layout: switch", "layout: loopback"))
    topology, _ = read_topology(path)
    assert (topology.nodes[0].ssh.user, topology.nodes[0].fabric.interface) == ("no", "12")
    assert topology.nodes[0].ssh.identity_file == "~/my key: #1"


def test_show_prints_one_column_per_node() -> None:
    result = RUNNER.invoke(app, ["show", "spark-4-switch"])
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if "ssh.user" in line)
    assert line.split() == ["ssh.user", "nvidia", "nvidia", "nvidia", "maria"]
    assert "rocep1s0f1, roceP2p1s0f1" in result.stdout


def test_show_as_json_has_origins() -> None:
    document = json.loads(RUNNER.invoke(app, ["show", "spark-3-triangle", "--json"]).stdout)
    assert document["resolved"]["nodes"][2]["fabric"]["socket_interface"] == "enP7s7"
    assert document["resolved"]["links"]["cables"][0]["from"] == "spark-a/enp1s0f0np0"
    assert document["origins"]["nodes[2].fabric.socket_interface"].endswith("spark-3-triangle.yaml:19:5")
    assert document["origins"]["nodes[2].gpus"] == "default"


def test_show_without_a_name_is_the_embedded_default() -> None:
    document = json.loads(RUNNER.invoke(app, ["show", "--json", "--local", "2"]).stdout)
    assert [node["connection"] for node in document["resolved"]["nodes"]] == ["local", "local"]


def test_writing_where_one_may_not_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be writable"):
        write_file(tmp_path / "no" / "such" / "t.yaml", "x")

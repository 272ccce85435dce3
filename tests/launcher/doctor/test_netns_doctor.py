"""Reachability between real network namespaces over real SSH: what is lost, cut, blocked, slow or one-way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from launcher.doctor.finding import Finding
from launcher.doctor.run_doctor import DoctorResult, run_doctor
from tests.hosts import NETNS_MARKS, NetnsHosts, NetnsNode
from tests.launcher.doctor.netns_cluster import assert_nothing_is_left, connected, netns_inputs

pytestmark = [*NETNS_MARKS, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[NetnsHosts]:
    with NetnsHosts(3) as hosts:
        yield hosts


def sh(node: NetnsNode, *lines: str) -> None:
    for line in lines:
        done = node.exec(["sh", "-c", line])
        assert done.returncode == 0, done.stderr


def examine(hosts: NetnsHosts) -> DoctorResult:
    inputs = netns_inputs(hosts)
    with connected(inputs) as remotes:
        return run_doctor(inputs, remotes, collective=False)


def network(result: DoctorResult) -> list[Finding]:
    """Findings about the network; there is no engine or model on these nodes."""
    own = {
        "reach",
        "reach-probe",
        "run-ports",
        "one-way",
        "jumbo",
        "cabling",
        "mtu",
        "route",
        "environment",
        "neighbours",
    }
    return [item for item in result.findings if item.check in own and item.level != "ok"]


def test_a_healthy_network_has_no_finding(hosts: NetnsHosts) -> None:
    result = examine(hosts)
    assert network(result) == []
    assert result.case.reach is not None
    kinds = [item.kind for item in result.case.reach.attempts]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"tcp": 6, "udp": 6, "jumbo": 6, "port": 4}
    heard = {(hello.source, hello.target) for hello in result.case.reach.hellos}
    assert heard == {(a.name, b.name) for a in hosts.nodes for b in hosts.nodes if a is not b}
    assert_nothing_is_left(hosts)


def test_unequal_mtu_cuts_full_frames(hosts: NetnsHosts) -> None:
    """F22: small packets pass, full frames do not, and the port that is smaller is named."""
    ill = hosts["node2"]
    sh(ill, "ip link set fabric0 mtu 1400")
    try:
        found = network(examine(hosts))
    finally:
        sh(ill, "ip link set fabric0 mtu 1500")
    assert {item.check for item in found} == {"mtu", "jumbo"}
    (mtu,) = (item for item in found if item.check == "mtu")
    assert (mtu.node, mtu.level) == ("node2", "refuse")
    assert "must be 1500 as on the other ends, got 1400" in mtu.evidence
    own = [item.evidence for item in found if item.check == "jumbo" and item.node == "node2"]
    assert len(own) == 2
    assert all("1472 bytes" in text and "message too long" in text for text in own)


def test_a_blocked_port_of_the_run_is_named(hosts: NetnsHosts) -> None:
    """A firewall that lets SSH and high ports through, and nothing to the rendezvous."""
    head = hosts["node1"]
    rule = "ipproto tcp sport 20000-29009 blackhole"
    sh(head, f"ip rule add {rule}")
    try:
        found = network(examine(hosts))
    finally:
        sh(head, f"ip rule del {rule}")
    assert {item.check for item in found} == {"run-ports"}
    assert {item.node for item in found} == {"node2", "node3"}
    assert all("of node1" in item.evidence and "no answer" in item.evidence for item in found)
    assert all("ufw" in item.fix for item in found)


def test_a_port_that_something_else_holds_is_named(hosts: NetnsHosts) -> None:
    """S-port: the API could not listen, which an engine tells after it has loaded everything."""
    head = hosts["node1"]
    port = netns_inputs(hosts).recipe.server.port
    sh(head, f"nohup python3 -m http.server -b 127.0.0.1 {port} >/dev/null 2>&1 &")
    while port not in head.listening_ports():
        time.sleep(0.02)
    try:
        result = examine(hosts)
    finally:
        for process in head.processes():
            if "http.server" in process.argv:
                os.kill(process.pid, signal.SIGKILL)
    (taken,) = (item for item in result.findings if item.check == "port")
    assert (taken.node, taken.level) == ("node1", "refuse")
    assert f"127.0.0.1:{port} must be free, it is in use" in taken.evidence
    assert "ss -ltnp" in taken.fix


def test_one_way_loss_is_told_apart(hosts: NetnsHosts) -> None:
    """S-one-subnet: node2 sends to a wrong MAC for node3;
    what node3 sends arrives, and no answer comes back."""
    ill, peer = hosts["node2"], hosts["node3"]
    sh(ill, f"ip neigh replace {peer.address} lladdr 02:00:00:00:00:99 dev fabric0 nud permanent")
    try:
        found = network(examine(hosts))
    finally:
        sh(ill, f"ip neigh del {peer.address} dev fabric0")
    one_way = [item for item in found if item.check == "one-way"]
    assert [(item.node, peer.address in item.evidence, ill.address in item.evidence) for item in one_way] == [
        ("node3", False, True)
    ]
    reach = [(item.node, item.level) for item in found if item.check == "reach"]
    assert sorted(reach) == [("node2", "refuse"), ("node3", "refuse")]


def test_a_route_over_another_interface_is_named(hosts: NetnsHosts) -> None:
    """F29: the way to a peer leaves over an interface that the plan does not name."""
    ill, peer = hosts["node3"], hosts["node1"]
    sh(
        ill,
        "ip link add wlP9s9 type veth peer name nowhere",
        "ip link set nowhere up",
        "ip addr add 198.18.0.3/24 dev wlP9s9",
        "ip link set wlP9s9 up",
        f"ip route add {peer.address}/32 dev wlP9s9",
    )
    try:
        found = network(examine(hosts))
    finally:
        sh(ill, "ip link del wlP9s9")
    (route,) = (item for item in found if item.check == "route")
    assert route.node == "node3"
    assert f"the route to {peer.address} must leave by fabric0, got wlP9s9" in route.evidence
    assert {item.check for item in found} >= {"route", "reach"}


def test_a_cable_that_is_out_is_one_finding_a_node(hosts: NetnsHosts) -> None:
    """The node is silent: it is named, and the others are still checked among themselves."""
    hosts["node2"].unplug()
    try:
        result = examine(hosts)
    finally:
        hosts["node2"].plug()
    (silent,) = (item for item in result.findings if item.check == "node-answer")
    assert (silent.node, silent.level) == ("node2", "refuse")
    assert result.case.reach is not None
    assert {(a.source, a.target) for a in result.case.reach.attempts} == {
        ("node1", "node3"),
        ("node3", "node1"),
    }
    assert not [a for a in result.case.reach.attempts if a.error]


def test_a_read_only_home_and_a_full_disk_stop_no_probe(hosts: NetnsHosts) -> None:
    """The probe leaves nothing on a node, so it needs no room there."""
    ill = hosts["node2"]
    sh(
        ill,
        "mount -t tmpfs -o size=64k tmpfs /root",
        "head -c 65536 /dev/zero > /root/ballast 2>/dev/null || true",
        "mount -o remount,ro /root",
    )
    try:
        result = examine(hosts)
    finally:
        sh(ill, "umount -l /root")
    assert [item.evidence for item in result.findings if item.check == "node-answer"] == []
    found = [
        (item.level, item.check) for item in result.findings if item.node == "node2" and item.level != "ok"
    ]
    assert ("warn", "writable") in found
    assert ("refuse", "disk") in found
    assert network(result) == []

"""Routes, firewalls, NCCL's files and environment: what decides where the data really goes."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.doctor.case import MELLANOX, Case
from launcher.doctor.check import (
    Check,
    always,
    between_nodes,
    check,
    in_a_ring,
    on_gpus,
    on_rdma,
    on_rdma_of_topology,
)
from launcher.doctor.finding import Problem, refuse, warn

HARMFUL_NCCL = ("NCCL_IB_USE_INLINE", "PREPOST")
MESH_ENVIRONMENT = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}
RING_ENVIRONMENT = {"NCCL_ALGO": "Ring"}
CAGES = {"triangle": 2, "ring": 2, "pair": 1, "switch": 1}


@check(
    "environment",
    part="fabric",
    covers="F8 F20 F34 F35",
    means="the interfaces in the plan's NCCL and Gloo environment exist on their node and have an address",
    why="Gloo ends with 'Unable to find address for', or binds to 127.0.0.1 and nobody reaches it",
    fix="correct fabric.interface or fabric.socket_interface of this node: sparkctl topology show",
    applies=always,
)
def environment(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            value = node.environment.get(name)
            interface = facts.interface(value)
            have = ", ".join(item.name for item in facts.interfaces)
            if value is None:
                yield refuse(node.name, f"{name} must be set in the plan, got nothing")
            elif interface is None:
                yield refuse(node.name, f"{name} must be an interface of the node ({have}), got {value!r}")
            elif not interface.addresses and case.knows_addresses(node.name):
                yield refuse(node.name, f"{name} must be an interface with an IPv4 address, {value} has none")


@check(
    "fabric-is-lan",
    part="fabric",
    covers="F21 F29 S-wifi",
    means="fabric.address is on a ConnectX-7 port, not on the LAN or WiFi",
    why="the GID search never matches, and data would go over 10 Gb/s or WiFi",
    fix="set fabric.interface and fabric.address of this node to a fabric port; the LAN "
    "belongs in socket_interface",
    applies=on_rdma,
)
def fabric_is_lan(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        port = facts.interface(node.node.fabric.interface)
        if port is not None and (port.is_wireless or (port.driver and port.driver != MELLANOX)):
            kind = "WiFi" if port.is_wireless else f"driver {port.driver}"
            fabric = ", ".join(
                item.name for item in facts.interfaces if item.driver == MELLANOX and item.is_up
            )
            yield refuse(
                node.name,
                f"fabric.interface must be a ConnectX-7 port ({fabric or 'none is up'}), "
                f"got {port.name} ({kind})",
            )


@check(
    "route",
    part="fabric",
    covers="F29 S-wifi",
    means="the way to every other node's meeting address leaves through the interface that the plan names",
    why="permanent SYN-SENT, no NCCL log: the packets leave over WiFi or another network",
    fix="ip route get ADDRESS on the node; put the address into a subnet that this interface has",
    applies=between_nodes,
)
def route(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        allowed = {port.name for port in case.data_ports(node, facts)} | {
            node.node.fabric.bootstrap_interface
        }
        for item in facts.routes:
            if item.problem:
                if case.knows_addresses(node.name):
                    yield refuse(node.name, f"there must be a route to {item.to}, got none: {item.problem}")
            elif item.interface not in allowed and item.interface != "lo":
                yield refuse(
                    node.name,
                    f"the route to {item.to} must leave by "
                    f"{' or '.join(sorted(allowed))}, got {item.interface} "
                    f"from {item.source}",
                )


@check(
    "neighbours",
    part="fabric",
    covers="S-one-subnet",
    means="every peer address has its own MAC, and answers ARP",
    why="RoCE sends to the wrong port of the peer and fails with status 12",
    fix="separate the subnets of twin ports; sudo ip neigh flush all",
    applies=between_nodes,
)
def neighbours(case: Case) -> Iterable[Problem]:
    wanted = {node.name: node.node.fabric.address for node in case.plan.nodes}
    for node, facts in case.fabrics():
        by_mac: dict[tuple[str, str | None], str] = {}
        for item in facts.neighbours:
            if (
                item.mac
                and item.state not in ("FAILED", "INCOMPLETE")
                and _is_data(case, node.name, item.interface)
            ):
                other = by_mac.setdefault((item.mac, item.interface), item.address)
                if other != item.address:
                    yield warn(
                        node.name,
                        f"{other} and {item.address} have one MAC, {item.mac} (ip neigh, {item.interface})",
                    )
            elif item.address in wanted.values() and item.state == "FAILED":
                yield warn(node.name, f"{item.address} does not answer ARP on {item.interface} (ip neigh)")


def _is_data(case: Case, name: str, interface: str | None) -> bool:
    facts = case.reports[name].fabric
    ports = case.data_ports(case.plan.node(name), facts) if facts else ()
    return interface in {port.name for port in ports}


@check(
    "firewall",
    part="fabric",
    covers="S-firewall",
    means="no firewall is switched on between the nodes",
    why="a worker times out at the rendezvous, after minutes; Gloo and NCCL use random ports",
    fix="sudo ufw allow from SUBNET for the fabric and LAN subnets of the nodes, or sudo ufw disable",
    applies=between_nodes,
)
def firewall(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        if facts.firewall:
            yield warn(node.name, "/etc/ufw/ufw.conf says ENABLED=yes")


@check(
    "forwarding",
    part="fabric",
    covers="S-forward-drop",
    means="a ring's relays may forward between their ports",
    why="Docker sets the FORWARD policy to DROP: opposite nodes of a ring do not reach each other",
    fix="sudo iptables -I DOCKER-USER -i PORT -o PORT -j ACCEPT for both fabric ports, both directions",
    applies=in_a_ring,
)
def forwarding(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        if facts.forward_policy == "DROP":
            yield warn(node.name, "the FORWARD policy is DROP (iptables -S FORWARD)")


@check(
    "verbs-devices",
    part="fabric",
    covers="F38 S-no-infiniband",
    means="/dev/infiniband has the devices that RDMA opens",
    why="'NET/IB : No device found', 'Failed to initialize any NET plugin': NCCL takes TCP or ends",
    fix="sudo modprobe ib_uverbs rdma_ucm mlx5_ib; in a container: --device /dev/infiniband",
    applies=on_rdma,
)
def verbs_devices(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        verbs = [name for name in facts.verbs_devices if name.startswith("uverbs")]
        if facts.hcas and (len(verbs) < len(facts.hcas) or "rdma_cm" not in facts.verbs_devices):
            have = ", ".join(facts.verbs_devices) or "nothing"
            yield refuse(
                node.name,
                f"/dev/infiniband must have rdma_cm and {len(facts.hcas)} uverbs devices, got {have}",
            )


@check(
    "nccl-conf",
    part="fabric",
    covers="F26",
    means="no file changes NCCL behind the plan's back",
    why="USE_INLINE and PREPOST make the first all-reduce of 4 bytes hang (GPU 96 %, 16 W)",
    fix="remove the line or the file; settings belong in the recipe's environment",
    applies=on_gpus,
)
def nccl_conf(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        for file in facts.nccl_conf:
            harmful = [line for line in file.settings if any(word in line for word in HARMFUL_NCCL)]
            if harmful:
                yield refuse(node.name, f"{file.path} has {'; '.join(harmful)}")
            elif file.settings:
                yield warn(
                    node.name,
                    f"{file.path} has {'; '.join(file.settings)}",
                    why="it holds on this node only, unseen by the plan",
                )


@check(
    "layout",
    part="fabric",
    covers="F23 F31",
    means="as many connectors are up as the layout needs, and NCCL is told about it",
    why="a triangle or ring needs NCCL to choose the port by subnet and never to build trees "
    "over links that are not there",
    fix="links.layout in the topology; add the variables to environment of the topology "
    "(sparkctl topology init does)",
    applies=on_rdma_of_topology,
)
def layout(case: Case) -> Iterable[Problem]:
    wanted = dict(MESH_ENVIRONMENT) if case.layout in ("triangle", "ring") else {}
    wanted |= RING_ENVIRONMENT if case.layout == "ring" else {}
    for node, facts in case.fabrics():
        missing = [f"{name}={value}" for name, value in wanted.items() if node.environment.get(name) != value]
        if missing:
            yield refuse(node.name, f"layout {case.layout} must have {' '.join(missing)} in the environment")
        cages = {
            port.cage for port in facts.interfaces if port.driver == MELLANOX and port.is_up and port.cage
        }
        needed = CAGES.get(case.layout or "", 0)
        if cages and len(cages) < needed:
            yield refuse(
                node.name,
                f"layout {case.layout} must have {needed} connectors up, got {', '.join(sorted(cages))}",
                fix="plug the second cable in: port 0 of each node to port 1 of the next",
            )
        elif needed == 1 and len(cages) == 2 and len(case.plan.nodes) == 3:
            yield warn(
                node.name,
                f"both connectors are up with layout {case.layout}: three nodes cabled "
                "like that are a triangle",
                fix="links.layout: triangle, or run: sparkctl topology init",
            )


CHECKS: tuple[Check, ...] = (
    environment,
    fabric_is_lan,
    route,
    neighbours,
    firewall,
    forwarding,
    verbs_devices,
    nccl_conf,
    layout,
)

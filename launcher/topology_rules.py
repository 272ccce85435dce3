"""Pure: what must hold between the nodes and links of a topology. Found before any node is reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.config_problem import ConfigProblem, KeyPath
from launcher.environment_rules import environment_problems
from launcher.recipe_rules import path_problem

if TYPE_CHECKING:
    from launcher.topology import Topology

# Layouts that fix the number of nodes: every other count has cables missing or left over.
_NODES_OF_LAYOUT = {"pair": (2, 2), "triangle": (3, 3), "ring": (4, 8)}


def topology_problems(topology: Topology) -> list[ConfigProblem]:
    """Everything that is wrong between keys."""
    return [
        *_duplicate_problems(topology),
        *_node_problems(topology),
        *_layout_problems(topology),
        *_cable_problems(topology),
    ]


def _duplicate_problems(topology: Topology) -> Iterator[ConfigProblem]:
    names: dict[str, str] = {}
    addresses: dict[str, str] = {}
    places: dict[tuple[object, ...], str] = {}
    for index, node in enumerate(topology.nodes):
        at: KeyPath = ("nodes", index)
        if node.name in names:
            yield ConfigProblem(at=(*at, "name"), message=f"node names must differ, got {node.name!r} twice")
        names[node.name] = node.name
        address = node.fabric.address
        if address in addresses and not node.fabric.is_loopback:
            yield ConfigProblem(
                at=(*at, "fabric", "address"),
                message=f"fabric addresses must differ, got {address} for {addresses[address]} and for "
                f"{node.name}",
            )
        addresses.setdefault(address, node.name)
        host = (node.ssh.host, node.ssh.port or 22) if node.connection == "ssh" else ("this machine", 0)
        place = (*host, node.paths.state)
        if place in places:
            yield ConfigProblem(
                at=(*at, "paths", "state"),
                message=f"paths.state must differ for nodes on one host, got {node.paths.state!r} on "
                f"{host[0]} for {places[place]} and {node.name}",
                hint="give each of them its own paths.state, or correct ssh.host",
            )
        places.setdefault(place, node.name)


def _node_problems(topology: Topology) -> Iterator[ConfigProblem]:
    for index, node in enumerate(topology.nodes):
        at: KeyPath = ("nodes", index)
        if node.connection == "ssh" and not node.ssh.host:
            yield ConfigProblem(
                at=(*at, "ssh", "host"),
                message=f"ssh.host must be set for node {node.name}, which is reached over ssh, got none",
                hint="an address, a host name, or a Host of ~/.ssh/config",
            )
        if node.connection == "local" and node.ssh.host:
            yield ConfigProblem(
                at=(*at, "ssh", "host"),
                message=f"ssh.host must be absent for node {node.name}, whose connection is local, "
                f"got {node.ssh.host!r}",
                hint="set connection to ssh, or remove the ssh keys",
            )
        for field in type(node.paths).model_fields:
            path = getattr(node.paths, field)
            reason = path_problem(path)
            if not reason and not path.startswith(("/", "~")):
                reason = "must be absolute or start with ~/ (the home on that node)"
            if reason:
                yield ConfigProblem(
                    at=(*at, "paths", field), message=f"paths.{field} of {node.name} {reason}, got {path!r}"
                )
        for problem in environment_problems(node.environment):
            yield ConfigProblem(at=(*at, *problem.at), message=problem.message, hint=problem.hint)


def _layout_problems(topology: Topology) -> Iterator[ConfigProblem]:
    layout, num_nodes = topology.links.layout, len(topology.nodes)
    at: KeyPath = ("links", "layout")
    low, high = _NODES_OF_LAYOUT.get(layout, (1, num_nodes))
    if not low <= num_nodes <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        yield ConfigProblem(
            at=at,
            message=f"links.layout {layout} must have {wanted} nodes, got {num_nodes}",
            hint=_layout_hint(num_nodes),
        )
    for index, node in enumerate(topology.nodes):
        if (layout == "loopback") != node.fabric.is_loopback:
            wanted = "a loopback address" if layout == "loopback" else "reachable from other nodes"
            yield ConfigProblem(
                at=("nodes", index, "fabric", "address"),
                message=f"fabric.address of {node.name} must be {wanted} with layout {layout}, "
                f"got {node.fabric.address}",
            )


def _layout_hint(num_nodes: int) -> str:
    direct = {2: "pair", 3: "triangle"}.get(num_nodes, "ring" if num_nodes > 3 else "")
    return "use switch" + (f", or {direct} without a switch" if direct else "")


def _cable_problems(topology: Topology) -> Iterator[ConfigProblem]:
    names = {node.name for node in topology.nodes}
    used: set[str] = set()
    for index, cable in enumerate(topology.links.cables):
        at: KeyPath = ("links", "cables", index)
        for key, end in (("from", cable.from_), ("to", cable.to)):
            node = end.split("/")[0]
            if node not in names:
                yield ConfigProblem(
                    at=(*at, key),
                    message=f"cable ends must be NODE/INTERFACE of a node in this file, got {end!r}",
                    hint=f"nodes: {', '.join(sorted(names))}",
                )
            if end in used:
                yield ConfigProblem(
                    at=(*at, key), message=f"an interface must hold one cable, got {end!r} twice"
                )
            used.add(end)
        if cable.from_.split("/")[0] == cable.to.split("/")[0]:
            yield ConfigProblem(
                at=at, message=f"a cable must join two nodes, got {cable.from_!r} to {cable.to!r}"
            )

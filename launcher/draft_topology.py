"""What `topology init` knows about each node -> the text of a topology file.

Nothing is invented: what neither the user nor the node said is left empty, and named as missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launcher.errors import UsageError
from launcher.node_facts import HcaFacts, InterfaceFacts, NodeFacts
from launcher.parse_yaml import plain_value

_SPEC = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:]+\]|[^@:\s]+)(?::(?P<port>[0-9]{1,5}))?")
_PLAIN = re.compile(r"[A-Za-z0-9/~][A-Za-z0-9._:@/~-]*")

# Without a switch every peer sits behind another port, so nodes meet on a network that reaches all of them.
_NEEDS_LAN = ("triangle", "ring")
_NO_FABRIC = ("lo", "docker", "br-", "veth", "virbr", "tailscale", "tun", "wg")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDraft:
    """One node of the file to be; None is still unknown."""

    name: str
    host: str
    port: int | None = None
    user: str | None = None
    address: str | None = None
    interface: str | None = None
    socket_interface: str | None = None
    hcas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDraft:
    name: str
    layout: str
    nodes: tuple[NodeDraft, ...]
    user: str | None = None
    identity_file: str | None = None

    def missing(self) -> tuple[str, ...]:
        """Keys that must be filled in before the file can be used."""
        names = []
        for node in self.nodes:
            names += [f"fabric.address of {node.name}"] if node.address is None else []
            names += [f"fabric.interface of {node.name}"] if node.interface is None else []
        return tuple(names)

    def with_stand_ins(self) -> TopologyDraft:
        """Documentation addresses for what is missing: only to check everything else, never written."""
        nodes = tuple(
            replace(node, address=node.address or f"192.0.2.{index + 1}", interface=node.interface or "eth0")
            for index, node in enumerate(self.nodes)
        )
        return replace(self, nodes=nodes)


def parse_node_specs(text: str) -> tuple[NodeDraft, ...]:
    """a,maria@b:2222,10.0.0.3 -> nodes named after their hosts; bare addresses become node-0, node-1, ..."""
    drafts: list[NodeDraft] = []
    for index, spec in enumerate(part.strip() for part in text.split(",")):
        match = _SPEC.fullmatch(spec)
        if match is None:
            raise UsageError(
                f"--nodes must be [user@]host[:port], separated by commas, got {spec!r}.",
                hint="for example --nodes spark-a,spark-b,spark-c",
            )
        host = match["host"].strip("[]")
        first = host.split(".")[0]
        name = first if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", first) else f"node-{index}"
        taken = {draft.name for draft in drafts}
        drafts.append(
            NodeDraft(
                name=f"{name}-{index}" if name in taken else name,
                host=host,
                port=int(match["port"]) if match["port"] else None,
                user=match["user"],
            )
        )
    return tuple(drafts)


def fill_from_facts(draft: NodeDraft, facts: NodeFacts, *, layout: str) -> NodeDraft:
    """Completes a node with its own ports: the fastest addressed RDMA port, and all HCAs that are up.

    What the user said stays. Nothing is taken from another node: port names and cables differ.
    """
    ports = [(hca, interface) for hca in facts.hcas if (interface := _usable(hca, facts)) is not None]
    hcas = tuple(hca.name for hca, _ in ports)
    candidates = [interface for _, interface in ports] or [
        item for item in facts.interfaces if _is_wired(item)
    ]
    chosen = facts.interface(draft.interface) if draft.interface else _fastest(candidates)
    filled = replace(
        draft,
        interface=draft.interface or (chosen.name if chosen else None),
        address=draft.address or (chosen.addresses[0] if chosen and chosen.addresses else None),
        hcas=draft.hcas or hcas,
    )
    if layout in _NEEDS_LAN and filled.socket_interface is None:
        netdevs = {interface.name for _, interface in ports}
        lan = _fastest([item for item in facts.interfaces if _is_wired(item) and item.name not in netdevs])
        filled = replace(filled, socket_interface=lan.name if lan else None)
    return filled


def _usable(hca: HcaFacts, facts: NodeFacts) -> InterfaceFacts | None:
    """The network device of an HCA that is cabled, up and addressed."""
    interface = facts.interface(hca.netdev) if hca.netdev else None
    is_active = hca.state is not None and hca.state.upper().endswith("ACTIVE")
    return interface if is_active and interface is not None and interface.addresses else None


def _is_wired(interface: InterfaceFacts) -> bool:
    return (
        bool(interface.addresses) and interface.state != "down" and not interface.name.startswith(_NO_FABRIC)
    )


def _fastest(interfaces: Sequence[InterfaceFacts]) -> InterfaceFacts | None:
    return max(interfaces, key=lambda item: item.speed_mbps or 0, default=None)


def render_topology(draft: TopologyDraft) -> str:
    """The file's text. An unknown value stays empty: reading the file then names it as missing."""
    return "\n".join(_lines(draft)) + "\n"


def _lines(draft: TopologyDraft) -> Iterator[str]:
    yield "# Written by `sparkctl topology init`. docs/topologies.md explains every key."
    yield "schema_version: 1"
    yield f"name: {_scalar(draft.name)}"
    yield from ("", "links:", f"  layout: {_scalar(draft.layout)}")
    if draft.user or draft.identity_file:
        yield from ("", "defaults:", "  ssh:")
        yield from _entries({"user": draft.user, "identity_file": draft.identity_file}, "    ")
    yield from ("", "nodes:")
    for node in draft.nodes:
        yield f"  - name: {_scalar(node.name)}"
        yield "    ssh:"
        yield from _entries({"host": node.host, "port": node.port, "user": node.user}, "      ")
        yield "    fabric:"
        yield f"      address:{_filled(node.address)}"
        yield f"      interface:{_filled(node.interface)}"
        yield from _entries({"socket_interface": node.socket_interface}, "      ")
        if node.hcas:
            yield f"      hcas: [{', '.join(_scalar(hca) for hca in node.hcas)}]"


def _entries(values: dict[str, str | int | None], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if value is not None:
            yield f"{indent}{key}: {value if isinstance(value, int) else _scalar(value)}"


def _filled(value: str | None) -> str:
    return f" {_scalar(value)}" if value else "  # fill in: see `ip -br addr` and `ibdev2netdev` on the node"


def _scalar(text: str) -> str:
    """Plain where YAML reads it back as this text, quoted elsewhere."""
    is_plain = _PLAIN.fullmatch(text) and not text.endswith(":") and isinstance(plain_value(text), str)
    return text if is_plain else json.dumps(text)

"""Typed facts of a node's ports, RDMA devices, addresses and routes."""

from __future__ import annotations

import ipaddress

from launcher.node_facts import Facts


class Interface(Facts):
    """`addresses` with prefix length. `cage`: `p0` or `p1`, the connector that the port belongs to."""

    name: str
    mac: str | None
    addresses: tuple[str, ...]
    mtu: int | None
    state: str | None
    carrier: int | None
    speed_mbps: int | None
    cage: str | None
    driver: str | None
    pci: str | None
    pcie_speed: str | None
    pcie_width: int | None
    is_wireless: bool

    @property
    def is_up(self) -> bool:
        return self.state == "up" or (self.state == "unknown" and self.carrier == 1)

    @property
    def networks(self) -> tuple[ipaddress.IPv4Network, ...]:
        return tuple(network for item in self.addresses if (network := _network(item)) is not None)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(item.split("/")[0] for item in self.addresses)


def _network(text: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Interface(text).network
    except ValueError:
        return None


class Gid(Facts):
    index: int
    type: str | None
    netdev: str | None
    address: str | None


class Hca(Facts):
    name: str
    netdev: str | None
    state: str | None
    phys_state: str | None
    link_layer: str | None
    rate: str | None
    firmware: str | None
    active_mtu: int | None
    gids: tuple[Gid, ...]

    @property
    def is_active(self) -> bool:
        return (self.state or "").endswith("ACTIVE")

    def rocev2(self) -> tuple[Gid, ...]:
        return tuple(gid for gid in self.gids if gid.type == "RoCE v2" and gid.address)


class Route(Facts):
    to: str
    interface: str | None
    source: str | None
    via: str | None
    problem: str | None


class Neighbour(Facts):
    address: str
    interface: str | None
    mac: str | None
    state: str


class NcclFile(Facts):
    path: str
    settings: tuple[str, ...]


class Registration(Facts):
    """`devices`: name -> why registering memory failed, or None. `problem`: why it could not be tried."""

    problem: str | None
    devices: dict[str, str | None]


class FabricFacts(Facts):
    interfaces: tuple[Interface, ...]
    hcas: tuple[Hca, ...]
    routes: tuple[Route, ...]
    neighbours: tuple[Neighbour, ...]
    arp_ignore: int | None
    ip_forward: int | None
    forward_policy: str | None
    firewall: bool | None
    verbs_devices: tuple[str, ...]
    registration: Registration | None = None
    hotplug: bool
    netplan: tuple[str, ...]
    nccl_conf: tuple[NcclFile, ...]

    def interface(self, name: str | None) -> Interface | None:
        return next((item for item in self.interfaces if item.name == name), None)

    def hca(self, name: str) -> Hca | None:
        return next((item for item in self.hcas if item.name == name), None)

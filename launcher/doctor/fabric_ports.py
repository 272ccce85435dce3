"""RDMA devices and ports: present, active, with the right GID, MTU, speed and PCIe link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.doctor.case import MELLANOX, Case, by_value, is_link_local
from launcher.doctor.check import Check, always, check, on_rdma, on_rdma_of_one_network
from launcher.doctor.fabric_facts import FabricFacts, Hca
from launcher.doctor.finding import Problem, refuse, warn
from launcher.plan import NodePlan

FULL_SPEED_MBPS = 200000
PCIE_SPEED, PCIE_WIDTH = "32.0 GT/s", 4
# RoCE takes the next lower of 256 .. 4096 below the netdev's MTU, with room for its own headers.
FULL_RDMA_MTU, RDMA_HEADER_BYTES = 4096, 100


def _wanted(node: NodePlan, facts: FabricFacts) -> Iterator[Hca]:
    """The HCAs of the topology that this node really has."""
    return (hca for name in node.node.fabric.hcas if (hca := facts.hca(name)) is not None)


@check(
    "hca",
    part="fabric",
    covers="F20 F30 F34 S-uncabled",
    means="every HCA that the topology names for the node exists there",
    why="'ncclCommInitRank invalid usage', or NCCL takes TCP without a word",
    fix="correct fabric.hcas of this node in the topology: names differ between nodes (ibdev2netdev)",
    applies=on_rdma,
)
def hca(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        missing = [name for name in node.node.fabric.hcas if facts.hca(name) is None]
        if not missing:
            continue
        have = ", ".join(f"{item.name} ({item.netdev}, {item.state})" for item in facts.hcas) or "none"
        evidence = f"fabric.hcas must exist, {', '.join(missing)} do not; "
        evidence += f"the node has {have} (/sys/class/infiniband)"
        if not facts.hcas and facts.hotplug:
            yield refuse(
                node.name,
                evidence + "; hot-plug is on, which removes the ports while no cable is in",
                fix="plug the cable in, wait a few seconds; a neighbour's reboot also takes "
                "the ports away for its time",
            )
        else:
            yield refuse(node.name, evidence)


@check(
    "port-state",
    part="fabric",
    covers="F20 S-cable-one-end S-wrong-cage",
    means="the ports of these HCAs are active and linked",
    why="NCCL skips the port or fails: 'No device found', 'port error'",
    fix="plug the cable in at both ends (in until it clicks), or name the port that is cabled; ibdev2netdev",
    applies=on_rdma,
)
def port_state(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        for item in _wanted(node, facts):
            netdev = facts.interface(item.netdev)
            if not item.is_active or "LinkUp" not in (item.phys_state or "LinkUp"):
                active = ", ".join(other.name for other in facts.hcas if other.is_active) or "none"
                yield refuse(
                    node.name,
                    f"{item.name} must be 4: ACTIVE, got {item.state}, {item.phys_state}; active: {active}",
                )
            elif netdev is not None and (not netdev.is_up or netdev.carrier == 0):
                yield refuse(
                    node.name,
                    f"{netdev.name} of {item.name} must be up, got {netdev.state}, carrier {netdev.carrier}",
                )
            elif item.link_layer not in (None, "Ethernet"):
                yield refuse(
                    node.name,
                    f"{item.name} must be Ethernet, got {item.link_layer}",
                    fix="set the port to Ethernet (mlxconfig)",
                )


@check(
    "gid",
    part="fabric",
    covers="F21 S-gid-moved",
    means="every HCA has a RoCE v2 GID of the node's own fabric address, found again at this launch",
    why="'ibv_modify_qp failed with 110', or status 12 (RETRY_EXC) in flight: the index "
    "points at another or empty GID",
    fix="remove fabric.gid_index from the topology (it is resolved at each launch); "
    "give the port its address",
    applies=on_rdma,
)
def gid(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        for item in _wanted(node, facts):
            yield from _gid_of(node, facts, item)


def _gid_of(node: NodePlan, facts: FabricFacts, item: Hca) -> Iterator[Problem]:
    fabric, usable = node.node.fabric, item.rocev2()
    listed = ", ".join(f"{gid.index} {gid.address}" for gid in usable) or "none"
    if not usable:
        bond = next((other.name for other in facts.interfaces if other.name.startswith("bond")), None)
        more = f"; {bond} hides the GIDs of its ports" if bond else ""
        yield refuse(
            node.name, f"{item.name} must have a RoCE v2 GID with an IPv4 address, got none{more} (show_gids)"
        )
    elif item.netdev == fabric.interface and fabric.address not in [gid.address for gid in usable]:
        yield refuse(
            node.name,
            f"{item.name} must have a RoCE v2 GID of {fabric.address}, got {listed}",
            fix=f"set fabric.address of this node to an address of {item.netdev}: {listed}",
        )
    elif fabric.gid_index is not None and fabric.gid_index not in [gid.index for gid in usable]:
        at = next((gid for gid in item.gids if gid.index == fabric.gid_index), None)
        seen = f"{at.type} {at.address or 'without IPv4'}" if at else "an empty slot"
        yield refuse(
            node.name,
            f"fabric.gid_index {fabric.gid_index} of {item.name} must be RoCE v2, it is "
            f"{seen}; usable: {listed}",
        )


@check(
    "port-address",
    part="fabric",
    covers="S-twin-address S-address-lost",
    means="every data port has an IPv4 address of its own that lasts",
    why="RoCE v2 has no GID there: half of the bandwidth is missing, or all",
    fix="write /etc/netplan/40-cx7.yaml (mode 0600) with one subnet a port and mtu "
    "9000, then: sudo netplan apply",
    applies=on_rdma,
)
def port_address(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        for port in case.data_ports(node, facts):
            if port.is_up and not port.addresses and case.knows_addresses(node.name):
                netplan = ", ".join(facts.netplan) or "no file"
                yield refuse(
                    node.name, f"{port.name} is up and has no IPv4 address (/etc/netplan has {netplan})"
                )
            elif port.addresses and all(is_link_local(item) for item in port.addresses):
                yield warn(
                    node.name,
                    f"{port.name} has only {', '.join(port.addresses)}: a link-local "
                    "address changes between boots",
                )


@check(
    "twins",
    part="fabric",
    covers="S-twin-unused",
    means="both twins of a cabled connector are used",
    why="one PCIe link carries at most half of the 200 Gb/s of a cable",
    fix="name both in fabric.hcas, each with an address of its own subnet",
    applies=on_rdma_of_one_network,
)
def twins(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        used = {item.netdev for item in _wanted(node, facts)}
        cages = {port.cage for port in facts.interfaces if port.name in used and port.cage}
        for port in facts.interfaces:
            if port.cage in cages and port.driver == MELLANOX and port.is_up and port.name not in used:
                yield warn(
                    node.name,
                    f"{port.name} is the twin of a used port ({port.cage}), up, and in no fabric.hcas",
                )


@check(
    "twin-subnets",
    part="fabric",
    covers="S-one-subnet",
    means="no two data ports of a node are in one subnet",
    why="the kernel answers ARP for either port (ARP flux): RoCE sends to the wrong MAC, "
    "retries, and fails with status 12",
    fix="give each port its own subnet; until then: sysctl net.ipv4.conf.all.arp_ignore=1 "
    "net.ipv4.conf.all.arp_announce=2",
)
def twin_subnets(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        seen: dict[object, str] = {}
        for port in facts.interfaces:
            if port.driver != MELLANOX and port not in case.data_ports(node, facts):
                continue
            for network in port.networks if port.is_up else ():
                other = seen.setdefault(network, port.name)
                if other != port.name:
                    make = warn if facts.arp_ignore else refuse
                    yield make(
                        node.name,
                        f"{other} and {port.name} are both in {network} (arp_ignore {facts.arp_ignore})",
                    )


@check(
    "mtu",
    part="fabric",
    covers="F22 S-mtu-1500 S-mtu-unequal",
    means="the MTU of the data ports is what the topology says, on both ends, and RDMA uses 4096",
    why="unequal: RETRY_EXC_ERR(12) and hangs with large messages; 1500 everywhere: RDMA cuts at "
    "1024 bytes, prefill 40 % slower",
    fix="mtu: 9000 for this port in /etc/netplan/40-cx7.yaml, then sudo netplan apply; on the switch too",
    applies=always,
)
def mtu(case: Case) -> Iterable[Problem]:
    wanted = case.links.mtu if case.links else None
    ports = [
        (node, port) for node, facts in case.fabrics() for port in case.data_ports(node, facts) if port.mtu
    ]
    unequal = len({port.mtu for _, port in ports}) > 1
    most = max((port.mtu or 0 for _, port in ports), default=0)
    for node, port in ports:
        if unequal and (port.mtu or 0) < most:
            yield refuse(
                node.name,
                f"MTU of {port.name} must be {most} as on the other ends, got {port.mtu} (/sys/class/net)",
            )
        elif wanted is not None and not unequal and (port.mtu or 0) < wanted:
            yield warn(node.name, f"MTU of {port.name} must be {wanted} (links.mtu), got {port.mtu}")
    for node, facts in case.fabrics():
        for item in _wanted(node, facts):
            netdev = facts.interface(item.netdev)
            mtu_bytes = netdev.mtu or 0 if netdev else 0
            if (
                item.is_active
                and item.active_mtu
                and item.active_mtu < FULL_RDMA_MTU < mtu_bytes - RDMA_HEADER_BYTES
            ):
                yield warn(
                    node.name,
                    f"active_mtu of {item.name} must be {FULL_RDMA_MTU} with MTU "
                    f"{mtu_bytes}, got {item.active_mtu}",
                    fix=f"sudo ip link set {item.netdev} down; sudo ip link set "
                    f"{item.netdev} up; ibv_devinfo",
                )


@check(
    "link-speed",
    part="fabric",
    covers="S-100g",
    means="every data port runs at 200 Gb/s",
    why="the link carries half of it, and the slowest sets the step",
    fix="use a 200G cable (QSFP56 DAC); set the switch port to 200G; ethtool PORT",
    applies=on_rdma,
)
def link_speed(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        for port in case.data_ports(node, facts):
            if port.driver == MELLANOX and port.is_up and 0 < (port.speed_mbps or 0) < FULL_SPEED_MBPS:
                yield warn(
                    node.name,
                    f"{port.name} must run at {FULL_SPEED_MBPS} Mb/s, got {port.speed_mbps} (/sys/class/net)",
                )


@check(
    "pcie-link",
    part="fabric",
    covers="S-pcie",
    means="every data port has its PCIe Gen5 x4 link",
    why="the port says 200 Gb/s and moves a half or less",
    fix="power the node off, unplug it for a minute",
    applies=on_rdma,
)
def pcie_link(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        for port in case.data_ports(node, facts):
            if port.driver != MELLANOX or port.pcie_speed is None or port.pcie_width is None:
                continue
            if not port.pcie_speed.startswith(PCIE_SPEED) or port.pcie_width < PCIE_WIDTH:
                yield warn(
                    node.name,
                    f"{port.name} ({port.pci}) must have PCIe {PCIE_SPEED} x{PCIE_WIDTH}, got "
                    f"{port.pcie_speed} x{port.pcie_width}",
                )


@check(
    "same-firmware",
    part="fabric",
    covers="S-firmware",
    means="all ConnectX-7 ports run the same firmware",
    why="an update that only some nodes took changes the speed of some links only",
    fix="update the same way on all nodes",
    applies=on_rdma,
)
def same_firmware(case: Case) -> Iterable[Problem]:
    values = {
        node.name: "/".join(sorted({item.firmware or "unknown" for item in _wanted(node, facts)}))
        for node, facts in case.fabrics()
        if any(_wanted(node, facts))
    }
    if len(set(values.values())) > 1:
        yield warn(
            list(values)[-1], f"ConnectX-7 firmware must be the same on all nodes, got {by_value(values)}"
        )


@check(
    "rdma-registration",
    part="registration",
    covers="F19",
    means="every HCA registers memory: 4 KiB, 1 MiB and 64 MiB, given back at once",
    why="ibv_reg_mr fails the same way at NCCL's start, after minutes of loading",
    fix="see checks cma, memlock and known-bad; add kho=off to the kernel command line, then reboot",
    applies=on_rdma,
)
def rdma_registration(case: Case) -> Iterable[Problem]:
    for node, facts in case.fabrics():
        devices = facts.registration.devices if facts.registration else {}
        for name in node.node.fabric.hcas:
            if why := devices.get(name):
                yield refuse(node.name, f"{name} must register memory, got: {why}")


CHECKS: tuple[Check, ...] = (
    hca,
    port_state,
    rdma_registration,
    gid,
    port_address,
    twins,
    twin_subnets,
    mtu,
    link_speed,
    pcie_link,
    same_firmware,
)

"""What came through: every pair, both ways, full frames, and which cable ends where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from launcher.doctor.cabling import Cabling, cabling_of
from launcher.doctor.case import Case
from launcher.doctor.check import Check, between_hcas, between_nodes, check
from launcher.doctor.finding import Problem, refuse, warn
from launcher.doctor.reach_report import Attempt

# A fabric answers in 0.2 to 1.1 ms; the probe itself needs a few on a busy node.
SLOW_ROUND_TRIP_S = 0.02


def _attempts(case: Case, kind: str) -> Iterator[Attempt]:
    return (item for item in (case.reach.attempts if case.reach else ()) if item.kind == kind)


@check(
    "reach",
    part="reach",
    covers="F29 F27 S-firewall",
    means="every node reaches every other by TCP on the interface where ranks meet, both ways",
    why="the start stands still at 'Init torch distributed begin' until its time-out",
    fix="ping -I INTERFACE ADDRESS on the node; correct the address, the cable or the firewall",
    applies=between_nodes,
)
def reach(case: Case) -> Iterable[Problem]:
    for item in _attempts(case, "tcp"):
        if item.error:
            interface = case.plan.node(item.source).node.fabric.bootstrap_interface
            back = next(
                (a for a in _attempts(case, "tcp") if (a.source, a.target) == (item.target, item.source)),
                None,
            )
            other = "the other way works" if back and not back.error else "nor does the other way"
            yield refuse(
                item.source,
                f"{item.target} ({item.address}) must be reached on {interface}: {item.error}; {other}",
            )
        elif item.round_trip_s is not None and item.round_trip_s > SLOW_ROUND_TRIP_S:
            yield warn(
                item.source,
                f"{item.target} ({item.address}) answers in {item.round_trip_s * 1e3:.0f} ms, "
                "a fabric needs under 1 ms",
                why="every collective of a step waits for it",
            )


@check(
    "run-ports",
    part="reach",
    covers="S-firewall S-port",
    means="workers reach the ports of the run on the head",
    why="the worker never joins: 'Timed out waiting for clients' on the head, after minutes",
    fix="open them for the nodes' subnets: sudo ufw allow from SUBNET",
    applies=between_nodes,
)
def run_ports(case: Case) -> Iterable[Problem]:
    for item in _attempts(case, "port"):
        if item.error:
            yield refuse(
                item.source,
                f"port {item.port} of {item.target} ({item.address}) must be reached: {item.error}",
            )


@check(
    "one-way",
    part="reach",
    covers="F27 S-one-subnet",
    means="single packets pass in both directions",
    why="what goes out does not come back: RETRY_EXC_ERR(12) in flight, or a hang",
    fix="look at both ends: ip neigh, ip route get, the cable",
    applies=between_nodes,
)
def one_way(case: Case) -> Iterable[Problem]:
    for item in _attempts(case, "udp"):
        if item.error and item.arrived:
            yield refuse(
                item.source, f"packets reach {item.target} ({item.address}) and its answers do not come back"
            )


@check(
    "jumbo",
    part="reach",
    covers="F22 S-mtu-unequal",
    means="a full frame of the topology's MTU passes uncut between every pair",
    why="small messages pass and large ones are lost: RETRY_EXC_ERR(12), or a hang after the first megabytes",
    fix="the same mtu on both ends and on the switch: ip link show INTERFACE; ping -M do -s 8972 ADDRESS",
    applies=between_nodes,
)
def jumbo(case: Case) -> Iterable[Problem]:
    small = {(item.source, item.target, item.address): item.error for item in _attempts(case, "udp")}
    for item in _attempts(case, "jumbo"):
        if item.error and not small.get((item.source, item.target, item.address)):
            yield refuse(
                item.source,
                f"a packet of {item.size_bytes} bytes must reach {item.target} "
                f"({item.address}) uncut: {item.error}",
            )


@check(
    "cabling",
    part="cables",
    covers="F27 F30 F31 F33 S-crossed",
    means="every cable joins the ports that the layout needs, and every port of the plan "
    "leads to a node of the cluster",
    why="'ibv_modify_qp failed with 110', or silence: the HCA that NCCL takes leads to "
    "another node than it thinks",
    fix="see the cabling plan",
    applies=between_hcas,
)
def cabling(case: Case) -> Iterable[Problem]:
    if not (case.reach and case.reach.hellos):
        return
    found = cabling_of(case)
    yield from _strays(case, found)
    if case.layout == "triangle":
        yield from _triangle(case, found)
    if case.layout in ("triangle", "ring", "pair"):
        yield from _subnets(case, found)


def _strays(case: Case, found: Cabling) -> Iterator[Problem]:
    for node, facts in case.fabrics():
        for port in case.data_ports(node, facts):
            if port.is_up and not found.peers_of(node.name, port.name):
                yield refuse(
                    node.name,
                    f"{port.name} is up and no node of the cluster answers behind it",
                    fix="take its HCA out of fabric.hcas, or put the cable into a node of the cluster",
                )


def _triangle(case: Case, found: Cabling) -> Iterator[Problem]:
    """Port 0 of each node must lead to port 1 of another:
    with p0-p0 every link is up and addresses do not fit."""
    for (node, cage), ends in sorted(found.cages.items()):
        same = sorted(end for end in ends if end[1] == cage and end[0] != node)
        if same and (node, cage) < same[0]:
            yield refuse(
                node,
                f"{cage} of {node} leads to {same[0][1]} of {same[0][0]}: a triangle joins p0 to p1",
                fix="plan: " + "; ".join(found.triangle_plan([item.name for item in case.plan.nodes])),
            )


def _subnets(case: Case, found: Cabling) -> Iterator[Problem]:
    """Two ends of one cable must share a subnet, or the crossed ports of a working link are unreachable."""
    told: set[frozenset[tuple[str, str]]] = set()
    for (node, cage), ends in sorted(found.cages.items()):
        for end in sorted(ends):
            pair = frozenset(((node, cage), end))
            mine, theirs = _networks(case, node, cage), _networks(case, *end)
            if pair not in told and mine and theirs and not mine & theirs:
                told.add(pair)
                wanted = ", ".join(sorted(map(str, mine)))
                yield refuse(
                    node,
                    f"{cage} of {node} ({wanted}) leads to {end[1]} of {end[0]} "
                    f"({', '.join(sorted(map(str, theirs)))}): "
                    "the two ends of a cable must share a subnet",
                    fix=f"swap the cables of {end[0]}, or give {end[1]} of {end[0]} addresses in {wanted}",
                )


def _networks(case: Case, node: str, cage: str) -> set[object]:
    facts = case.reports[node].fabric
    ports = [port for port in facts.interfaces if port.cage == cage] if facts else []
    return {network for port in ports for network in port.networks}


@check(
    "reach-probe",
    part="reach",
    means="every node took part in the reachability probe",
    why="what was not sent cannot be judged",
    fix="see the reason; sparkctl doctor again",
    applies=between_nodes,
)
def reach_probe(case: Case) -> Iterable[Problem]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for node, reason in (case.reach.problems if case.reach else {}).items():
        reasons[reason].append(node)
    for reason, nodes in reasons.items():
        yield refuse(", ".join(nodes), reason)


CHECKS: tuple[Check, ...] = (reach_probe, reach, run_ports, one_way, jumbo, cabling)

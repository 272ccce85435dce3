"""Which connector of which node leads to which: made from packets to everybody on a cable."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from launcher.doctor.case import Case

End = tuple[str, str]  # node, connector (p0, p1) or interface where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Cabling:
    """`ports`: (node, interface) -> nodes heard there; `cages`: connector -> connectors at the other end."""

    ports: dict[End, frozenset[str]]
    cages: dict[End, frozenset[End]]

    def peers_of(self, node: str, interface: str) -> frozenset[str]:
        return self.ports.get((node, interface), frozenset())

    def lines(self) -> list[str]:
        """`spark-a p0 - spark-b p1`, each cable once."""
        pairs = {tuple(sorted((one, other))) for one, others in self.cages.items() for other in others}
        return [f"{a[0]} {a[1]} - {b[0]} {b[1]}" for a, b in sorted(pairs)]

    def triangle_plan(self, nodes: list[str]) -> list[str]:
        return [f"{node} p0 to {nodes[(i + 1) % len(nodes)]} p1" for i, node in enumerate(nodes)]


def cabling_of(case: Case) -> Cabling:
    ports: dict[End, set[str]] = defaultdict(set)
    cages: dict[End, set[End]] = defaultdict(set)
    for hello in case.reach.hellos if case.reach else ():
        one = (hello.source, hello.source_interface)
        other = (hello.target, hello.target_interface)
        ports[one].add(hello.target)
        ports[other].add(hello.source)
        near, far = _cage(case, *one), _cage(case, *other)
        if near and far:
            cages[near].add(far)
            cages[far].add(near)
    return Cabling(
        ports={key: frozenset(value) for key, value in ports.items()},
        cages={key: frozenset(value) for key, value in cages.items()},
    )


def _cage(case: Case, node: str, interface: str) -> End | None:
    facts = case.reports[node].fabric if node in case.reports else None
    port = facts.interface(interface) if facts else None
    return (node, port.cage) if port and port.cage else None

"""Everything that the checks look at:
the plan, the links of the topology, what each node told, what was sent."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.doctor.fabric_facts import FabricFacts, Interface
from launcher.doctor.host_facts import GpuFacts, HostFacts
from launcher.doctor.node_report import NodeReport
from launcher.doctor.reach_report import ReachReport
from launcher.doctor.software_facts import SoftwareFacts, StorageFacts
from launcher.plan import LaunchPlan, NodePlan
from launcher.topology import Links

MELLANOX = "mlx5_core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`links` is None where only a plan is known, `reach` where nothing was sent between the nodes."""

    plan: LaunchPlan
    links: Links | None
    reports: Mapping[str, NodeReport]
    reach: ReachReport | None = None

    @property
    def has_gpu(self) -> bool:
        return self.plan.runtime != "cpu"

    @property
    def has_rdma(self) -> bool:
        return any(node.node.fabric.hcas for node in self.plan.nodes)

    @property
    def is_spread(self) -> bool:
        return is_spread(self.plan)

    @property
    def layout(self) -> str | None:
        return self.links.layout if self.links else None

    def knows_addresses(self, node: str) -> bool:
        """Where `ip` is missing or hangs, that no address or route was read does not mean that none is."""
        return "ip" not in self.reports[node].tool_problems

    def hosts(self) -> Iterator[tuple[NodePlan, HostFacts]]:
        for node in self.plan.nodes:
            if (facts := self.reports[node.name].host) is not None:
                yield node, facts

    def fabrics(self) -> Iterator[tuple[NodePlan, FabricFacts]]:
        for node in self.plan.nodes:
            if (facts := self.reports[node.name].fabric) is not None:
                yield node, facts

    def gpus(self) -> Iterator[tuple[NodePlan, GpuFacts]]:
        for node in self.plan.nodes:
            if (facts := self.reports[node.name].gpu) is not None:
                yield node, facts

    def stores(self) -> Iterator[tuple[NodePlan, StorageFacts]]:
        for node in self.plan.nodes:
            if (facts := self.reports[node.name].storage) is not None:
                yield node, facts

    def software(self) -> Iterator[tuple[NodePlan, SoftwareFacts]]:
        for node in self.plan.nodes:
            if (facts := self.reports[node.name].software) is not None:
                yield node, facts

    def data_ports(self, node: NodePlan, facts: FabricFacts) -> tuple[Interface, ...]:
        """Interfaces that carry data between nodes: fabric.interface, those of the HCAs, those of cables."""
        fabric = node.node.fabric
        names = {fabric.interface}
        names |= {hca.netdev for name in fabric.hcas if (hca := facts.hca(name)) and hca.netdev}
        for cable in self.links.cables if self.links else ():
            for end in (cable.from_, cable.to):
                if end.split("/")[0] == node.name:
                    names.add(end.split("/")[1])
        return tuple(item for item in facts.interfaces if item.name in names and item.name != "lo")


def is_spread(plan: LaunchPlan) -> bool:
    """More than one node, on a network."""
    return len(plan.nodes) > 1 and not any(node.node.fabric.is_loopback for node in plan.nodes)


def is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address.split("/")[0]).is_link_local


def gib(num_bytes: int | float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def by_value(values: Mapping[str, object]) -> str:
    """`spark-a and spark-b 9000, spark-c 1500`: who has what, for a thing that must be the same."""
    groups: dict[object, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    return ", ".join(f"{' and '.join(nodes)} {value}" for value, nodes in groups.items())

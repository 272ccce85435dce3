"""A plan also where a node is wrong or silent, so that everything else can still be checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from launcher.errors import PreflightRefused
from launcher.make_plan import make_plan
from launcher.node_facts import EngineFacts, NodeFacts
from launcher.plan import LaunchPlan, NodePlan
from launcher.recipe import Recipe
from launcher.run_on_all import Result
from launcher.topology import Fabric, Node, Topology


def plan_anyway(
    recipe: Recipe, topology: Topology, facts: Mapping[str, Result[NodeFacts]], *, run_id: str
) -> tuple[LaunchPlan, dict[str, NodeFacts]]:
    """The plan, and the facts of the nodes that told theirs.

    Where make_plan refuses a node's fabric, the node is planned without HCAs and socket_interface, and gets
    its own settings back afterwards: the checks hca, gid and environment say what is wrong with them.
    """
    known = {name: item.value for name, item in facts.items() if item.value is not None}
    planned = {node.name: known.get(node.name) or _stand_in(node) for node in topology.nodes}
    nodes = {node.name: node for node in topology.nodes}
    while True:
        try:
            plan = make_plan(recipe, _with(topology, nodes), planned, run_id=run_id)
            break
        except PreflightRefused as error:
            name = error.node or ""
            if name not in nodes or nodes[name].fabric == _plain(nodes[name].fabric):
                raise
            nodes[name] = nodes[name].model_copy(update={"fabric": _plain(nodes[name].fabric)})
    original = {node.name: node for node in topology.nodes}
    restored = tuple(_restore(node, original[node.name]) for node in plan.nodes)
    return replace(plan, nodes=restored), known


def _plain(fabric: Fabric) -> Fabric:
    return fabric.model_copy(update={"hcas": (), "socket_interface": None})


def _with(topology: Topology, nodes: Mapping[str, Node]) -> Topology:
    return topology.model_copy(update={"nodes": tuple(nodes.values())})


def _restore(planned: NodePlan, node: Node) -> NodePlan:
    if planned.node == node:
        return planned
    interface = node.fabric.bootstrap_interface
    names = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return replace(planned, node=node, environment=planned.environment | names)


def _stand_in(node: Node) -> NodeFacts:
    """For a node that did not answer: only so that the others can be planned;
    nothing of it is judged or shown."""
    return NodeFacts(
        hostname=node.name,
        user="unknown",
        home="/unknown",
        architecture="unknown",
        kernel="unknown",
        boot_id="unknown",
        memory_total_bytes=None,
        memory_available_bytes=0,
        paths=node.paths.model_dump(),
        state_problem=None,
        interfaces=(),
        hcas=(),
        busy_ports=(),
        live_runs=(),
        model=None,
        engine=EngineFacts(problem=None),
    )

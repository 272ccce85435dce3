"""Ask all nodes for their facts at once. Read-only."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from launcher.call_node import ask_node
from launcher.make_plan import node_port, node_ranks, num_ranks, run_ports
from launcher.node_facts import NodeFacts, parse_facts
from launcher.plan import LaunchPlan, NodePlan
from launcher.plan_groups import nodes_of_group, part_run_id, recipe_of_group, router_node
from launcher.recipe import Recipe
from launcher.remote import Remote
from launcher.run_on_all import Result, run_on_all
from launcher.topology import Node, Topology

PROBE_TIMEOUT_S = 30.0
ANY_ADDRESS = "0.0.0.0"

PortList = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProbe:
    """What is asked of one node: its paths, whether the model is there, and whether ports are free; of the
    router's, which router it has.
    """

    node: Node
    model_path: str | None
    runtime: str
    ports: PortList
    packed: PackedProbe | None = None
    router: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedProbe:
    """The packed Engram files that a node must have. `path` is absolute, or relative to its paths.engram."""

    path: str
    ranks: tuple[int, ...]
    tp: int


def probes_for_recipe(recipe: Recipe, topology: Topology, *, run_id: str) -> tuple[NodeProbe, ...]:
    def ports(rank: int) -> PortList:
        if rank > 0:
            return (("127.0.0.1", node_port(recipe, rank)),)
        return ((recipe.server.host, recipe.server.port), *_run_ports(run_id))

    return tuple(
        NodeProbe(
            node=node,
            model_path=recipe.model.path,
            runtime=recipe.engine.runtime,
            ports=ports(rank),
            packed=packed_of_recipe(recipe, rank % recipe.nodes_per_group),
        )
        for rank, node in enumerate(topology.nodes)
    )


def probes_for_deployment(recipe: Recipe, topology: Topology, *, run_id: str) -> tuple[NodeProbe, ...]:
    """As probes_for_recipe; with several groups every group's own ports, and the router's node."""
    if recipe.parallelism.groups == 1:
        return probes_for_recipe(recipe, topology, run_id=run_id)
    probes: list[NodeProbe] = []
    for number in range(1, recipe.parallelism.groups + 1):
        # Where a group's API will listen is one of the facts that are asked for here.
        alone, own = recipe_of_group(recipe, number, ANY_ADDRESS), nodes_of_group(recipe, topology, number)
        probes += probes_for_recipe(alone, own, run_id=part_run_id(run_id, f"group {number}"))
    api = ((recipe.server.host, recipe.server.port),)
    return (*probes, _router_probe(router_node(topology), recipe.engine.runtime, api))


def _router_probe(node: Node, runtime: str, ports: PortList) -> NodeProbe:
    return NodeProbe(node=node, model_path=None, runtime=runtime, ports=ports, router=True)


def packed_of_recipe(recipe: Recipe, node_rank: int) -> PackedProbe | None:
    """None where the recipe keeps the rows elsewhere."""
    engram = recipe.extensions.engram
    if engram.residence != "nvme" or engram.packed_path is None:
        return None
    tp = recipe.parallelism.tp
    return PackedProbe(path=engram.packed_path, ranks=node_ranks(recipe, node_rank), tp=tp)


def probes_for_plan(plan: LaunchPlan) -> tuple[NodeProbe, ...]:
    if plan.is_router:
        api = ((plan.api.host, plan.api.port),)
        return (_router_probe(plan.head.node, plan.runtime, api),)

    def ports(node_rank: int) -> PortList:
        own = (plan.api.host if node_rank == 0 else "127.0.0.1", plan.api.port + node_rank)
        return (own, *_run_ports(plan.run_id)) if node_rank == 0 else (own,)

    return tuple(
        NodeProbe(
            node=node.node,
            model_path=node.model_path,
            runtime=plan.runtime,
            ports=ports(node.node_rank),
            packed=_packed_of_plan(plan, node),
        )
        for node in plan.nodes
    )


def _packed_of_plan(plan: LaunchPlan, node: NodePlan) -> PackedProbe | None:
    path = node.environment.get("SPARKCTL_ENGRAM_DIR")
    return None if path is None else PackedProbe(path=path, ranks=node.ranks, tp=num_ranks(plan))


def _run_ports(run_id: str) -> PortList:
    return tuple((ANY_ADDRESS, port) for port in run_ports(run_id))


def gather_facts(
    remotes: Mapping[str, Remote],
    probes: tuple[NodeProbe, ...],
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Result[NodeFacts]]:
    """Facts or the error of every node. `tell` gets a line as each node answers, from several threads."""
    by_name = {probe.node.name: probe for probe in probes}

    def ask(remote: Remote) -> NodeFacts:
        probe = by_name[remote.node]
        answer = ask_node(
            remote,
            "probe",
            timeout_s=PROBE_TIMEOUT_S,
            paths=probe.node.paths.model_dump(),
            model_path=probe.model_path,
            ports=probe.ports,
            engine_runtime=probe.runtime,
            engine_python=posixpath.join(probe.node.paths.engine, "bin/python"),
            packed=asdict(probe.packed) if probe.packed else None,
            router=probe.router,
        )
        facts = parse_facts(remote.node, answer)
        tell(f"{remote.node}: {describe_facts(facts)}")
        return facts

    return run_on_all(list(remotes.values()), ask)


def describe_facts(facts: NodeFacts) -> str:
    """One line for the progress of a launch: who answered, and what is installed there."""
    engine = facts.engine.problem or (
        f"sglang {facts.engine.sglang}" if facts.engine.sglang else "engine in a container"
    )
    parts = [f"connected to {facts.hostname} as {facts.user}", engine]
    if facts.model is not None:
        size = f" ({facts.model.weight_bytes / 2**30:.2f} GiB)" if facts.model.weight_bytes else ""
        parts.append(f"model: {facts.model.problem}" if facts.model.problem else f"model complete{size}")
    return ", ".join(parts)

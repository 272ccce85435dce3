"""Which checkpoint on which nodes a command means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from launcher.choose_inputs import choose_inputs, default_topology_path, first_nodes
from launcher.errors import UsageError
from launcher.gather_facts import PackedProbe, packed_of_recipe
from launcher.read_topology import find_topology, read_topology
from launcher.topology import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """`model_path` as in a recipe: absolute, or below each node's paths.models. `packed`: the packed Engram
    files that serve a node's rows by the recipe."""

    nodes: tuple[Node, ...]
    model_path: str
    repo: str | None
    revision: str | None
    packed: dict[str, PackedProbe] = field(default_factory=dict)

    def node(self, name: str | None) -> Node:
        """The first one without a name. Raises UsageError."""
        if name is None:
            return self.nodes[0]
        for node in self.nodes:
            if node.name == name:
                return node
        raise UsageError(
            f"a node must be one of {', '.join(node.name for node in self.nodes)}, got {name!r}",
            hint="sparkctl topology show",
        )

    def others(self, node: Node) -> tuple[Node, ...]:
        """Every other node. Raises UsageError when there is none."""
        rest = tuple(other for other in self.nodes if other.name != node.name)
        if not rest:
            raise UsageError("a push must have a second node, got one alone", hint="sparkctl topology show")
        return rest


def choose_weights(
    *, recipe: str | None, topology: str | None, num_nodes: int | None, model_path: str | None
) -> Weights:
    """A recipe says model and number of nodes; --model-path alone takes all nodes of the topology."""
    if recipe is not None:
        inputs = choose_inputs(recipe=recipe, topology=topology, nodes=num_nodes, port=None)
        model = inputs.recipe.model
        packed = {
            node.name: probe
            for rank, node in enumerate(inputs.topology.nodes)
            if (probe := packed_of_recipe(inputs.recipe, rank)) is not None
        }
        return Weights(
            packed=packed,
            nodes=inputs.topology.nodes,
            model_path=model_path or model.path,
            repo=model.repo,
            revision=model.revision,
        )
    if model_path is None:
        raise UsageError(
            "the checkpoint must be named by a recipe or a path",
            hint="sparkctl weights status --recipe v41-flash-3x, or --model-path PATH",
        )
    return Weights(nodes=topology_nodes(topology, num_nodes), model_path=model_path, repo=None, revision=None)


def topology_nodes(topology: str | None, num_nodes: int | None) -> tuple[Node, ...]:
    """All nodes of the topology, or its first ones. Raises UsageError without one."""
    path = find_topology(topology) if topology else default_topology_path()
    if topology is None and not Path(path).is_file():
        raise UsageError(
            f"a topology must be there, and there is no {path}",
            hint="describe your nodes once: sparkctl topology init --nodes spark-1,spark-2,spark-3",
        )
    read, _ = read_topology(path)
    if num_nodes is not None:
        read = first_nodes(read, num_nodes, path)
    return read.nodes

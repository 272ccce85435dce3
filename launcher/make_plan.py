"""Pure: recipe + topology + facts of the nodes + a run id -> LaunchPlan.
No clock, network, disk or randomness.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping

from launcher.errors import ConfigError, PreflightRefused
from launcher.fit.choose_chunk import with_chosen_chunk
from launcher.node_facts import NodeFacts
from launcher.plan import SCHEMA_VERSION, ApiPlan, HeartbeatPlan, LaunchPlan, LockPlan, NodePlan, RunLimits
from launcher.plan_groups import one_group, place
from launcher.recipe import Recipe
from launcher.sglang_command import (
    docker_command,
    engine_environment,
    not_supported_yet,
    server_options,
    venv_command,
)
from launcher.split_rows import check_split, split_rows_note
from launcher.topology import Node, Topology

# Rendezvous ports: below the range that Linux hands out to clients (32768 and up), above the usual services.
# Each run takes a block: the engine also uses the ports after its rendezvous port.
FIRST_PORT = 20000
PORT_BLOCK = 10
NUM_BLOCKS = 900
DRAIN_S = 2.5


def run_ports(run_id: str) -> tuple[int, int]:
    """Rendezvous and heartbeat port of a run: the same for the same id, different for two runs in a row, so
    that a worker of an old run never meets the head of a new one."""
    digest = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big")
    first = FIRST_PORT + PORT_BLOCK * (digest % NUM_BLOCKS)
    return first, first + PORT_BLOCK - 1


def node_port(recipe: Recipe, node_rank: int) -> int:
    """HTTP port of a node: nodes that share a machine must not share it, and a router has the first one."""
    return recipe.server.port + node_rank + (1 if recipe.parallelism.groups > 1 else 0)


def node_ranks(recipe: Recipe, node_rank: int) -> tuple[int, ...]:
    """Ranks of a node: one for each of its GPUs."""
    gpus = recipe.parallelism.gpus_per_node
    return tuple(range(node_rank * gpus, (node_rank + 1) * gpus))


def num_ranks(plan: LaunchPlan) -> int:
    return sum(len(node.ranks) for node in plan.nodes)


def check_fit(recipe: Recipe, topology: Topology) -> None:
    """The recipe must be for exactly these nodes. Raises ConfigError."""
    wanted, got = recipe.parallelism.nodes, len(topology.nodes)
    if wanted != got:
        raise ConfigError(
            f"recipe {recipe.name} must have {wanted} nodes, got {got} in topology {topology.name}",
            hint="choose a recipe for this topology: sparkctl recipe list",
        )
    for node in topology.nodes:
        if node.gpus != recipe.parallelism.gpus_per_node:
            raise ConfigError(
                f"node must have {recipe.parallelism.gpus_per_node} GPUs for recipe {recipe.name},"
                f" got {node.gpus}",
                hint="set parallelism.gpus_per_node in the recipe or gpus in the topology",
                node=node.name,
            )


def make_plan(
    recipe: Recipe,
    topology: Topology,
    facts: Mapping[str, NodeFacts],
    *,
    run_id: str,
    lock: LockPlan | None = None,
    values: Recipe | None = None,
) -> LaunchPlan:
    """Raises ConfigError when recipe and topology do not fit or no chunk is long enough for its split rows,
    PreflightRefused when a node's fabric cannot be resolved.
    """
    check_fit(recipe, topology)
    recipe, chunk_note = with_chosen_chunk(recipe)
    check_split(recipe)
    rendezvous_port, heartbeat_port = run_ports(run_id)
    head = topology.nodes[0]
    head_address = host_ip(head, facts[head.name])
    heads = topology.nodes[:: recipe.nodes_per_group]
    addresses = [host_ip(node, facts[node.name]) for node in heads]
    rendezvous = [place(address, rendezvous_port + index) for index, address in enumerate(addresses)]
    notes = (*((chunk_note,) if chunk_note else ()), *split_rows_note(recipe))
    num_workers = len(topology.nodes) - 1
    return LaunchPlan(
        schema_version=SCHEMA_VERSION,
        run_id=run_id,
        recipe=recipe.name,
        profile=recipe.profile,
        topology=topology.name,
        runtime=recipe.engine.runtime,
        sglang_version=recipe.engine.sglang_version,
        not_supported=not_supported_yet(recipe),
        rendezvous=rendezvous[0],
        api=ApiPlan(
            host=recipe.server.host,
            port=recipe.server.port,
            served_name=recipe.served_name,
            needs_key=recipe.server.api_key == "auto" and not recipe.server.is_loopback,
        ),
        heartbeat=HeartbeatPlan(
            address=head_address,
            port=heartbeat_port,
            num_workers=num_workers,
            timeout_s=recipe.limits.peer_timeout_s,
        )
        if num_workers
        else None,
        limits=RunLimits(
            ready_timeout_s=recipe.limits.ready_timeout_s,
            freeze_timeout_s=recipe.limits.freeze_timeout_s,
            stop_timeout_s=recipe.limits.stop_timeout_s,
            drain_s=DRAIN_S,
        ),
        nodes=tuple(
            _plan_node(
                recipe,
                node,
                facts[node.name],
                rank,
                run_id,
                rendezvous[rank // recipe.nodes_per_group],
                notes,
            )
            for rank, node in enumerate(topology.nodes)
        ),
        lock=lock,
        values=values,
    )


def _plan_node(
    recipe: Recipe,
    node: Node,
    facts: NodeFacts,
    node_rank: int,
    run_id: str,
    rendezvous: str,
    head_notes: tuple[str, ...],
) -> NodePlan:
    model_path = facts.model.path if facts.model else recipe.model.path
    gid_index, notes = _gid_index(node, facts)
    environment = engine_environment(
        recipe,
        node,
        run_id=run_id,
        home=facts.home,
        user=facts.user,
        engine_path=facts.paths["engine"],
        host_ip=host_ip(node, facts),
        gid_index=gid_index,
        cache_path=facts.paths["cache"],
        state_path=facts.paths["state"],
        engram_path=facts.paths["engram"],
    )
    options = server_options(
        one_group(recipe, host_ip(node, facts)),
        node_rank=node_rank % recipe.nodes_per_group,
        rendezvous=rendezvous,
        model_path=model_path,
        port=node_port(recipe, node_rank),
    )
    container = f"sparkctl-{run_id}-{node.name}" if recipe.engine.runtime == "docker" else None
    if container:
        run_dir = posixpath.join(facts.paths["state"], "runs", run_id)
        argv = docker_command(
            recipe.engine.image or "", container, environment, model_path=model_path,
            cache_path=facts.paths["cache"], run_dir=run_dir, options=options,
        )  # fmt: skip
    else:
        argv = venv_command(facts.paths["engine"], options)
    return NodePlan(
        node=node,
        node_rank=node_rank,
        is_head=node_rank == 0,
        ranks=node_ranks(recipe, node_rank),
        state_path=facts.paths["state"],
        model_path=model_path,
        argv=argv,
        environment=environment,
        container=container,
        notes=(*(head_notes if node_rank == 0 else ()), *notes),
    )


def host_ip(node: Node, facts: NodeFacts) -> str:
    """Address that the other nodes reach this one at for rendezvous: the fabric address, unless another
    interface is named for sockets. Raises PreflightRefused when that interface has no address."""
    fabric = node.fabric
    if fabric.bootstrap_interface == fabric.interface:
        return fabric.address
    interface = facts.interface(fabric.bootstrap_interface)
    if interface is None or not interface.addresses:
        raise PreflightRefused(
            "fabric.socket_interface must be an interface with an IPv4 address,"
            f" got {fabric.bootstrap_interface!r}"
            f" (the node has {_names(facts)})",
            hint="correct it in the topology: sparkctl topology show",
            node=node.name,
        )
    return interface.addresses[0]


def _names(facts: NodeFacts) -> str:
    return ", ".join(
        f"{item.name} {'/'.join(item.addresses) or 'without address'}" for item in facts.interfaces
    )


def _gid_index(node: Node, facts: NodeFacts) -> tuple[int | None, tuple[str, ...]]:
    """Index of the RoCE v2 GID, resolved at each launch from the HCAs of this node: it moves between boots.

    NCCL takes one index for all HCAs of a process. Where they agree it is set; where they do not it is left
    unset, which lets NCCL resolve it per HCA, and the plan says so.
    """
    if node.fabric.gid_index is not None:
        return node.fabric.gid_index, ()
    indices = {}
    for name in node.fabric.hcas:
        hca = next((item for item in facts.hcas if item.name == name), None)
        if hca is None or not hca.rocev2_gids:
            have = ", ".join(item.name for item in facts.hcas) or "none"
            raise PreflightRefused(
                f"fabric.hcas must be RDMA devices with a RoCE v2 IPv4 GID, got {name!r}"
                f" (the node has {have})",
                hint="look at the ports (ibdev2netdev, show_gids on the node), then correct the topology",
                node=node.name,
            )
        own = [gid for gid in hca.rocev2_gids if gid.address == node.fabric.address]
        indices[name] = (own or list(hca.rocev2_gids))[0].index
    if len(set(indices.values())) == 1:
        return next(iter(indices.values())), ()
    if not indices:
        return None, ()
    listed = ", ".join(f"{name} {index}" for name, index in indices.items())
    return None, (
        f"NCCL_IB_GID_INDEX is left unset: the HCAs' RoCE v2 GIDs differ ({listed}); NCCL resolves each",
    )

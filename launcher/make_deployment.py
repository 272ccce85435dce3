"""Pure: the plans of everything that a recipe starts: one run, or each group's and the router's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from launcher.deployment import Deployment
from launcher.make_plan import DRAIN_S, check_fit, host_ip, make_plan, run_ports
from launcher.node_facts import NodeFacts
from launcher.plan import (
    ROUTER,
    SCHEMA_VERSION,
    ApiPlan,
    LaunchPlan,
    LockPlan,
    NodePlan,
    RunLimits,
)
from launcher.plan_groups import (
    nodes_of_group,
    part_run_id,
    recipe_of_group,
    router_command,
    router_node,
)
from launcher.recipe import Recipe
from launcher.sglang_command import BASE_PATH
from launcher.topology import Topology

# Its groups serve when it is started: it has nothing to load.
ROUTER_READY_S = 120.0


def make_deployment(
    recipe: Recipe,
    topology: Topology,
    facts: Mapping[str, NodeFacts],
    *,
    run_id: str,
    lock: LockPlan | None = None,
    values: Recipe | None = None,
) -> Deployment:
    """Raises what make_plan raises. With several groups `facts` has those of the router's node too."""
    check_fit(recipe, topology)
    if recipe.parallelism.groups == 1:
        only = make_plan(recipe, topology, facts, run_id=run_id, lock=lock, values=values)
        return Deployment(plans=(only,))
    groups = [
        _group_plan(recipe, topology, facts, run_id, number, lock, values)
        for number in range(1, recipe.parallelism.groups + 1)
    ]
    return Deployment(plans=(*groups, _router_plan(recipe, topology, facts, run_id, groups)))


def ports_differ(recipe: Recipe, run_id: str) -> bool:
    """Groups may share a machine: their ports come from their run ids, and must not be the same."""
    groups = range(1, recipe.parallelism.groups + 1)
    return len({run_ports(part_run_id(run_id, f"group {number}")) for number in groups}) == len(groups)


def _group_plan(
    recipe: Recipe,
    topology: Topology,
    facts: Mapping[str, NodeFacts],
    run_id: str,
    group: int,
    lock: LockPlan | None,
    values: Recipe | None,
) -> LaunchPlan:
    own, part = nodes_of_group(recipe, topology, group), f"group {group}"
    address = host_ip(own.nodes[0], facts[own.nodes[0].name])
    made = make_plan(
        recipe_of_group(recipe, group, address),
        own,
        facts,
        run_id=part_run_id(run_id, part),
        lock=lock,
        values=values,
    )
    return replace(made, deployment=run_id, part=part)


def _router_plan(
    recipe: Recipe,
    topology: Topology,
    facts: Mapping[str, NodeFacts],
    deployment: str,
    groups: list[LaunchPlan],
) -> LaunchPlan:
    """The router's API is the recipe's. It has no key, and asks its groups without one."""
    run_id, node = part_run_id(deployment, ROUTER), router_node(topology)
    own, limits, paths = facts[ROUTER], recipe.limits, facts[ROUTER].paths
    environment = {
        "HOME": own.home,
        "LC_ALL": "C.UTF-8",
        "PATH": f"{paths['engine']}/bin:{BASE_PATH}",
        "PYTHONUNBUFFERED": "1",
        "SPARKCTL_NODE": node.name,
        "SPARKCTL_RUN_ID": run_id,
        "USER": own.user,
    }
    plan = NodePlan(
        node=node,
        node_rank=0,
        is_head=True,
        ranks=(),
        state_path=paths["state"],
        model_path=groups[0].head.model_path,
        argv=router_command(recipe, paths["engine"], [group.api.url for group in groups]),
        environment=environment,
        container=None,
        notes=(),
    )
    return LaunchPlan(
        schema_version=SCHEMA_VERSION,
        run_id=run_id,
        recipe=recipe.name,
        profile=recipe.profile,
        topology=topology.name,
        runtime=recipe.engine.runtime,
        sglang_version=recipe.engine.sglang_version,
        not_supported=(),
        rendezvous=groups[0].rendezvous,
        api=ApiPlan(
            host=recipe.server.host,
            port=recipe.server.port,
            served_name=recipe.served_name,
            needs_key=False,
        ),
        heartbeat=None,
        limits=RunLimits(
            ready_timeout_s=ROUTER_READY_S,
            freeze_timeout_s=limits.freeze_timeout_s,
            stop_timeout_s=limits.stop_timeout_s,
            drain_s=DRAIN_S,
        ),
        nodes=(plan,),
        deployment=deployment,
        part=ROUTER,
    )

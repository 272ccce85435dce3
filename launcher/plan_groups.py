"""Pure: what differs where several copies of the model share the nodes behind a router."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from launcher.errors import ConfigError
from launcher.plan import ROUTER
from launcher.recipe import Recipe
from launcher.topology import Node, Topology

ROUTER_VERSION = "0.3.2"


def place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def one_group(recipe: Recipe, address: str) -> Recipe:
    """The recipe as one group's engine sees it:
    its own nodes only, and an API that the router reaches at `address`."""
    parallel = recipe.parallelism
    if parallel.groups == 1:
        return recipe
    return recipe.model_copy(
        update={
            "parallelism": parallel.model_copy(update={"groups": 1, "nodes": recipe.nodes_per_group}),
            "server": recipe.server.model_copy(update={"host": address}),
            "router": None,
        }
    )


def part_run_id(deployment: str, part: str) -> str:
    """Each group and the router is a run of its own: X-g1, X-g2, X-router."""
    return f"{deployment}-{part.replace('group ', 'g')}"


def whole_of(run_id: str) -> str:
    """The deployment that a run of a group or a router, by its id, is a part of; any other run is a whole."""
    return re.sub(rf"-(g\d+|{ROUTER})$", "", run_id)


def nodes_of_group(recipe: Recipe, topology: Topology, group: int) -> Topology:
    """The group's nodes alone; the first is its head. Groups are counted from 1."""
    first = (group - 1) * recipe.nodes_per_group
    nodes = topology.nodes[first : first + recipe.nodes_per_group]
    return topology.model_copy(update={"nodes": nodes})


def recipe_of_group(recipe: Recipe, group: int, address: str) -> Recipe:
    """The recipe of a cluster that is this group and nothing else. Its API is for the router, which has no
    key for it: it listens at `address` on the fabric only, or on loopback."""
    alone = one_group(recipe, address)
    port = recipe.server.port + 1 + (group - 1) * recipe.nodes_per_group
    server = alone.server.model_copy(update={"port": port, "api_key": "none"})
    return alone.model_copy(update={"server": server})


def router_node(topology: Topology) -> Node:
    """Where the router runs: beside the first group's head, but not as a part of its run. Raises ConfigError
    when a node has the router's name.
    """
    if any(node.name == ROUTER for node in topology.nodes):
        raise ConfigError(
            f"a node must not be named {ROUTER!r}, as that is the router of the groups"
            f" (topology {topology.name})",
            hint="give that node another name",
        )
    head = topology.nodes[0]
    own = {"state": posixpath.join(head.paths.state, ROUTER)}
    return head.model_copy(
        update={
            "name": ROUTER,
            "ssh": head.ssh.model_copy(update={"host": head.ssh.host or head.name}),
            "paths": head.paths.model_copy(update=own),
        }
    )


def nodes_to_reach(recipe: Recipe, topology: Topology) -> tuple[Node, ...]:
    """Every node that takes part, the router's among them."""
    more = (router_node(topology),) if recipe.parallelism.groups > 1 else ()
    return (*topology.nodes, *more)


def router_command(recipe: Recipe, engine_path: str, urls: Sequence[str]) -> tuple[str, ...]:
    """sglang-router in the engine's environment, in front of the groups' APIs."""
    router, server = recipe.router, recipe.server
    assert router is not None  # recipe_rules
    words = [posixpath.join(engine_path, "bin/python"), "-m", "sglang_router.launch_router"]
    words += ["--host", server.host, "--port", str(server.port), "--worker-urls", *urls]
    words += ["--policy", router.policy, "--balance-abs-threshold", str(router.balance_abs_threshold)]
    return (*words, "--health-check-interval-secs", str(router.health_interval_s))

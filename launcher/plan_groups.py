"""Pure: what differs where several copies of the model share the nodes behind a router."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from launcher.errors import UsageError
from launcher.recipe import Recipe
from launcher.topology import Topology


def place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def one_group(recipe: Recipe, address: str) -> Recipe:
    """The recipe as one group's engine sees it: its own nodes only, and an API that the router reaches at
    `address`."""
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


def check_group(recipe: Recipe, group: int) -> None:
    """Raises UsageError: groups are counted from 1."""
    groups = recipe.parallelism.groups
    if not 1 <= group <= groups or groups == 1:
        wanted = f"1 to {groups}" if groups > 1 else "left out, as the recipe has one group"
        raise UsageError(
            f"--group must be {wanted}, got {group} (recipe {recipe.name})",
            hint="sparkctl plan shows all groups at once",
        )


def nodes_of_group(recipe: Recipe, topology: Topology, group: int) -> Topology:
    """The group's nodes alone; the first is its head."""
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


def router_note(recipe: Recipe, heads: Sequence[str]) -> str:
    """The router's command for the first node; empty for one group. `heads`: address of each group's head."""
    router, server = recipe.router, recipe.server
    if router is None:
        return ""
    ports = [server.port + 1 + index * recipe.nodes_per_group for index in range(len(heads))]
    words = ["python", "-m", "sglang_router.launch_router", "--host", server.host, "--port", str(server.port)]
    words += ["--worker-urls", *(f"http://{place(*pair)}" for pair in zip(heads, ports, strict=True))]
    words += ["--policy", router.policy, "--balance-abs-threshold", str(router.balance_abs_threshold)]
    words += ["--health-check-interval-secs", str(router.health_interval_s)]
    return f"router, here, once every group serves (pip install sglang-router==0.3.2): {shlex.join(words)}"

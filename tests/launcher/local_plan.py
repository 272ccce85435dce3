"""A plan of the small local recipe, and a view of it that tests feed by hand."""

from __future__ import annotations

from typing import Any

from launcher.cluster_view import ClusterView
from launcher.compose_recipe import load_recipe
from launcher.make_plan import make_plan
from launcher.plan import LaunchPlan
from launcher.topology import local_topology
from tests.launcher.make_facts import all_facts

NAMES = {1: "local-1x", 2: "local-2x", 3: "local"}


def local_plan(num_nodes: int = 3, run_id: str = "20260101-000000-0000") -> LaunchPlan:
    recipe, _ = load_recipe(NAMES[num_nodes])
    topology = local_topology(num_nodes)
    return make_plan(recipe, topology, all_facts(topology, recipe), run_id=run_id)


def serving_view(num_nodes: int = 3, now_s: float = 0.0) -> ClusterView:
    view = ClusterView(local_plan(num_nodes), now_s)
    for rank, name in enumerate(view.nodes):
        tell(view, name, now_s, ranks={str(100 + rank): f"sglang::scheduler_TP{rank}"})
    return view


def tell(view: ClusterView, name: str, now_s: float, **state: Any) -> None:
    """The node's supervisor says so."""
    node = view.nodes[name]
    node.feed({"state": {"end": None, **node.state, **state}}, now_s)


def say(view: ClusterView, name: str, now_s: float, *lines: str) -> None:
    """The node's engine logs these lines."""
    view.nodes[name].feed({"log": "".join(f"{line}\n" for line in lines), "offset": 0}, now_s)


def end(view: ClusterView, name: str, now_s: float, kind: str, what: str, **more: Any) -> None:
    tell(view, name, now_s, end={"kind": kind, "what": what, "at_unix": 1.0, **more})

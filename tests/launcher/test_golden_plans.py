"""Every shipped recipe, planned on an example topology: the plan must be the golden one, to the byte.

After a wanted change, write them anew:
SPARKCTL_WRITE_GOLDEN=1 python -m pytest tests/launcher/test_golden_plans.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.compose_recipe import load_recipe
from launcher.deployment import deployment_from_json, deployment_to_json
from launcher.find_recipe import shipped_recipes, shipped_topologies
from launcher.make_deployment import make_deployment
from launcher.plan_groups import nodes_to_reach
from launcher.read_topology import read_topology
from launcher.recipe import Recipe
from launcher.topology import Topology, local_topology
from tests.launcher.make_facts import make_facts

GOLDEN = Path(__file__).parents[1] / "golden" / "plans"
RUN_ID = "20260101-000000-0000"


def topologies_for(recipe: Recipe) -> list[Topology]:
    """Those of the shipped examples that have as many nodes; the local default for the CPU engine."""
    if recipe.engine.runtime == "cpu":
        return [local_topology(recipe.parallelism.nodes)]
    examples = [read_topology(path)[0] for path in shipped_topologies().values()]
    sparks = [item for item in examples if item.links.layout != "loopback"]
    return [item for item in sparks if len(item.nodes) == recipe.parallelism.nodes]


def every_profile(name: str) -> list[Recipe]:
    """The recipe as it is, or with each of its profiles."""
    plain = load_recipe(name)[0]
    return [load_recipe(name, profile=profile)[0] for profile in plain.profiles] or [plain]


def golden_name(recipe: Recipe, topology: Topology) -> str:
    profile = f".{recipe.profile}" if recipe.profile else ""
    return f"{recipe.name}{profile}@{topology.name}"


CASES = [
    (recipe, topology)
    for name in sorted(shipped_recipes())
    for recipe in every_profile(name)
    for topology in topologies_for(recipe)
]


def test_every_shipped_recipe_has_a_topology() -> None:
    assert {recipe.name for recipe, _ in CASES} == set(shipped_recipes())


@pytest.mark.parametrize(("recipe", "topology"), CASES, ids=[golden_name(*case) for case in CASES])
def test_golden_plan(recipe: Recipe, topology: Topology) -> None:
    facts = {node.name: make_facts(node, recipe) for node in nodes_to_reach(recipe, topology)}
    plan = make_deployment(recipe, topology, facts, run_id=RUN_ID)
    text = deployment_to_json(plan)
    path = GOLDEN / f"{golden_name(recipe, topology)}.json"
    if os.environ.get("SPARKCTL_WRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"the plan differs from {path.name}; see this file's first lines"
    assert deployment_from_json(text) == plan


def test_no_golden_plan_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {golden_name(*case) for case in CASES}

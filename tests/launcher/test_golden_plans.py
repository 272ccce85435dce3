"""Every shipped recipe, planned on an example topology: the plan must be the golden one, to the byte.

After a wanted change, write them anew:
SPARKCTL_WRITE_GOLDEN=1 python -m pytest tests/launcher/test_golden_plans.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.compose_recipe import load_recipe
from launcher.find_recipe import shipped_recipes, shipped_topologies
from launcher.make_plan import make_plan
from launcher.plan import plan_from_json, plan_to_json
from launcher.read_topology import read_topology
from launcher.recipe import Recipe
from launcher.topology import Topology, local_topology
from tests.launcher.make_facts import all_facts

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
    plan = make_plan(recipe, topology, all_facts(topology, recipe), run_id=RUN_ID)
    text = plan_to_json(plan)
    path = GOLDEN / f"{golden_name(recipe, topology)}.json"
    if os.environ.get("SPARKCTL_WRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"the plan differs from {path.name}; see this file's first lines"
    assert plan_from_json(text) == plan


def test_no_golden_plan_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {golden_name(*case) for case in CASES}

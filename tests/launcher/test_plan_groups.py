"""Two copies of the model behind a router: each group is a cluster of its own, and the plan says so."""

from __future__ import annotations

import shlex

import pytest

from launcher.compose_recipe import load_recipe
from launcher.doctor.plan_anyway import plan_anyway
from launcher.errors import UsageError
from launcher.find_recipe import shipped_topologies
from launcher.gather_facts import probes_for_recipe
from launcher.make_plan import make_group_plan, make_plan
from launcher.plan import LaunchPlan, plan_from_json, plan_to_json
from launcher.preflight import find_problems
from launcher.read_topology import read_topology
from launcher.recipe import Recipe, Router
from launcher.recipe_rules import recipe_problems
from tests.launcher.make_facts import all_facts

RECIPE = load_recipe("v41-flash-8x")[0]
TOPOLOGY = read_topology(shipped_topologies()["spark-8-switch"])[0]


def planned() -> LaunchPlan:
    return make_plan(RECIPE, TOPOLOGY, all_facts(TOPOLOGY, RECIPE), run_id="20260101-000000-0000")


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_each_group_is_a_cluster_of_four_with_its_own_meeting_place() -> None:
    engines = [node.argv for node in planned().nodes]
    assert {option(argv, "--nnodes") for argv in engines} == {"4"}
    assert {option(argv, "--tp-size") for argv in engines} == {"4"}
    assert [option(argv, "--node-rank") for argv in engines] == ["0", "1", "2", "3"] * 2
    meeting = [option(argv, "--dist-init-addr") for argv in engines]
    assert len(set(meeting[:4])) == len(set(meeting[4:])) == 1 and meeting[0] != meeting[4]
    # The router reaches the heads; workers stay on loopback; nobody takes the router's port.
    assert [option(argv, "--host") for argv in engines] == [
        "192.168.100.10", *["127.0.0.1"] * 3, "192.168.100.14", *["127.0.0.1"] * 3,
    ]  # fmt: skip
    assert [int(option(argv, "--port")) for argv in engines] == list(range(30001, 30009))


def test_the_first_node_is_told_the_routers_command() -> None:
    (note,) = [text for text in planned().head.notes if text.startswith("router")]
    words = shlex.split(note.partition("): ")[2])
    assert words[:3] == ["python", "-m", "sglang_router.launch_router"]
    assert option(tuple(words), "--port") == "30000" and option(tuple(words), "--policy") == "cache_aware"
    first = words.index("--worker-urls") + 1
    assert words[first : first + 2] == ["http://192.168.100.10:30001", "http://192.168.100.14:30005"]


def test_up_refuses_by_name_what_it_cannot_start_together() -> None:
    found = find_problems(planned(), all_facts(TOPOLOGY, RECIPE))
    (problem,) = [item for item in found if "parallelism.groups: 2" in item.message]
    assert (problem.level, problem.check) == ("refuse", "not-supported")


def group_planned(group: int) -> LaunchPlan:
    facts = all_facts(TOPOLOGY, RECIPE)
    return make_group_plan(RECIPE, TOPOLOGY, facts, run_id="20260101-000000-0000", group=group)


def test_a_group_is_a_run_of_its_own_that_up_accepts() -> None:
    """Every engine gets what it gets in the plan of all; meeting places and run ids are the group's own."""
    both = planned()
    for group, nodes in ((1, both.nodes[:4]), (2, both.nodes[4:])):
        made = group_planned(group)
        assert plan_from_json(plan_to_json(made)) == made
        assert not any("groups" in text for text in made.not_supported)
        assert (made.run_id, made.deployment) == (f"20260101-000000-0000-g{group}", "20260101-000000-0000")
        assert [node.name for node in made.nodes] == [node.name for node in nodes]
        assert [node.ranks for node in made.nodes] == [(0,), (1,), (2,), (3,)]
        assert made.api.url == f"http://{nodes[0].node.fabric.address}:{30001 + 4 * (group - 1)}"
        for own, other in zip(made.nodes, nodes, strict=True):
            for name in ("--host", "--port", "--nnodes", "--node-rank", "--tp-size"):
                assert option(own.argv, name) == option(other.argv, name)
    assert group_planned(1).rendezvous != group_planned(2).rendezvous
    # Only the first group's head runs the router, and in front of both APIs.
    (note,) = [text for text in group_planned(1).head.notes if text.startswith("router")]
    assert all(group_planned(group).api.url in note for group in (1, 2))
    assert not any(text.startswith("router") for text in group_planned(2).head.notes)


def test_a_group_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="--group must be 1 to 2, got 3"):
        group_planned(3)
    one = load_recipe("v41-flash-4x")[0]
    with pytest.raises(UsageError, match="left out, as the recipe has one group"):
        make_group_plan(one, TOPOLOGY, {}, run_id="x", group=1)


def test_both_groups_read_the_packed_rows_of_four_ranks() -> None:
    packed = [probe.packed for probe in probes_for_recipe(RECIPE, TOPOLOGY, run_id="20260101-000000-0000")]
    assert [item.ranks for item in packed if item] == [(0,), (1,), (2,), (3,)] * 2


def test_groups_router_and_nodes_must_agree() -> None:
    def problems(**changes: object) -> list[str]:
        return [item.message for item in recipe_problems(RECIPE.model_copy(update=changes))]

    parallel = RECIPE.parallelism
    assert problems() == []
    assert problems(router=None) == ["router must be set for 2 groups, got none"]
    assert any("must divide nodes = 8, got 3" in text for text in problems(parallelism=_with(groups=3)))
    assert any("nodes of a group * gpus_per_node = 4" in text for text in problems(parallelism=_with(tp=8)))
    one: Recipe = load_recipe("v41-flash-4x")[0].model_copy(update={"router": Router()})
    assert [item.message for item in recipe_problems(one)] == ["router must be absent for one group"]
    assert parallel.groups == 2 and plan_anyway(RECIPE, TOPOLOGY, {}, run_id="x")[0].nodes


def _with(**changes: object) -> object:
    return RECIPE.parallelism.model_copy(update=changes)

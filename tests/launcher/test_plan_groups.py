"""Two copies of the model behind a router: each group is a cluster of its own, and the plan says so."""

from __future__ import annotations

import shlex

from launcher.compose_recipe import load_recipe
from launcher.doctor.plan_anyway import plan_anyway
from launcher.find_recipe import shipped_topologies
from launcher.gather_facts import probes_for_recipe
from launcher.make_plan import make_plan
from launcher.plan import LaunchPlan
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

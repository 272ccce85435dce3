"""Two copies of the model behind a router: each group is a cluster of its own, and the plan says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher import end_run
from launcher.cli import up
from launcher.cli.plan import describe_plan
from launcher.compose_recipe import load_recipe
from launcher.deployment import Deployment, deployment_from_json, deployment_to_json
from launcher.doctor.plan_anyway import plan_anyway
from launcher.errors import ConfigError, NoSuchRun, PreflightRefused, UsageError
from launcher.find_recipe import shipped_topologies
from launcher.gather_facts import probes_for_deployment, probes_for_plan
from launcher.launch_cluster import check
from launcher.make_deployment import make_deployment, ports_differ
from launcher.make_plan import make_plan, run_ports
from launcher.node_facts import NodeFacts, PackedFacts, RunFacts
from launcher.plan import LaunchPlan, plan_from_json, plan_to_json
from launcher.plan_groups import nodes_to_reach, part_run_id, router_node, whole_of
from launcher.preflight import find_problems
from launcher.read_topology import read_topology
from launcher.recipe import Recipe, Router
from launcher.recipe_rules import recipe_problems
from launcher.run_record import RunRecord, RunRecords
from tests.launcher.make_facts import all_facts, make_facts

RECIPE = load_recipe("v41-flash-8x")[0]
TOPOLOGY = read_topology(shipped_topologies()["spark-8-switch"])[0]
RUN_ID = "20260101-000000-0000"


def facts_of(recipe: Recipe = RECIPE) -> dict[str, NodeFacts]:
    return all_facts(TOPOLOGY, recipe) | {"router": make_facts(router_node(TOPOLOGY), recipe)}


def deployed() -> Deployment:
    return make_deployment(RECIPE, TOPOLOGY, facts_of(), run_id=RUN_ID)


def planned() -> LaunchPlan:
    return make_plan(RECIPE, TOPOLOGY, all_facts(TOPOLOGY, RECIPE), run_id=RUN_ID)


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


def test_a_group_is_a_run_of_its_own() -> None:
    """Every engine gets what it gets in the plan of all; meeting places and run ids are the group's own."""
    both, groups = planned(), deployed().groups
    for made, nodes, number in zip(groups, (both.nodes[:4], both.nodes[4:]), (1, 2), strict=True):
        assert plan_from_json(plan_to_json(made)) == made
        assert not made.not_supported and not made.is_router
        assert (made.run_id, made.deployment, made.part) == (f"{RUN_ID}-g{number}", RUN_ID, f"group {number}")
        assert [node.name for node in made.nodes] == [node.name for node in nodes]
        assert [node.ranks for node in made.nodes] == [(0,), (1,), (2,), (3,)]
        assert made.api.url == f"http://{nodes[0].node.fabric.address}:{30001 + 4 * (number - 1)}"
        assert not made.api.needs_key
        for own, other in zip(made.nodes, nodes, strict=True):
            for name in ("--host", "--port", "--nnodes", "--node-rank", "--tp-size"):
                assert option(own.argv, name) == option(other.argv, name)
    assert groups[0].rendezvous != groups[1].rendezvous


def test_the_router_has_the_recipes_api_and_a_run_of_its_own_beside_the_first_head() -> None:
    made = deployed()
    router = made.router
    assert router is not None and made.plans == (*made.groups, router) and made.id == RUN_ID
    assert (router.run_id, router.part, router.is_router) == (f"{RUN_ID}-router", "router", True)
    assert (router.api.host, router.api.port, router.api.needs_key) == ("127.0.0.1", 30000, False)
    head = made.groups[0].head
    node = router.head
    assert node.node.ssh.host == (head.node.ssh.host or head.name) and node.ranks == ()
    assert node.state_path == f"{head.state_path}/router"  # a node holds one run in one place
    words = node.argv
    assert words[:3] == (head.argv[0], "-m", "sglang_router.launch_router")
    first = words.index("--worker-urls") + 1
    assert words[first : first + 2] == tuple(group.api.url for group in made.groups)
    assert option(words, "--port") == "30000" and option(words, "--policy") == "cache_aware"
    assert node.environment["SPARKCTL_RUN_ID"] == router.run_id and "NCCL_NET" not in node.environment


def test_a_plan_file_holds_groups_and_router_and_comes_back_the_same() -> None:
    made = deployed()
    text = deployment_to_json(made)
    assert deployment_from_json(text) == made
    shown = "\n".join(describe_plan(plan) for plan in made.plans)
    for plan in made.plans:
        assert f"# {plan.part}: run {plan.run_id}" in shown
    alone = deployment_to_json(Deployment(plans=made.plans[:1]))
    assert alone == plan_to_json(made.plans[0]) and deployment_from_json(alone).plans == made.plans[:1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value["plans"].pop(), "then of the router"),
        (lambda value: value["plans"].pop(0), "then of the router"),
        (lambda value: value.update(plans={}), "then of the router"),
        (lambda value: value.update(deployment="other"), "every plan must be of deployment 'other'"),
        (lambda value: value["plans"][1].update(run_id=f"{RUN_ID}-g1"), "run ids must differ"),
        (lambda value: value["plans"][1].update(nodes=value["plans"][0]["nodes"]), "node names must differ"),
        (lambda value: value["plans"][2]["nodes"][0].update(ranks=[0]), "one node without ranks"),
        (lambda value: value["plans"][0]["nodes"][0].update(ranks=[]), "ranks must be 0, 1, 2"),
    ],
)
def test_a_plan_file_whose_parts_do_not_belong_together_is_refused(change: object, message: str) -> None:
    value = json.loads(deployment_to_json(deployed()))
    change(value)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message):
        deployment_from_json(json.dumps(value), source="p.json")


def test_up_asks_for_every_ones_ports_and_for_the_router() -> None:
    probes = {item.node.name: item for item in probes_for_deployment(RECIPE, TOPOLOGY, run_id=RUN_ID)}
    assert list(probes) == [node.name for node in nodes_to_reach(RECIPE, TOPOLOGY)]
    heads = [TOPOLOGY.nodes[0].name, TOPOLOGY.nodes[4].name]
    for number, head in enumerate(heads):
        own = [(host, port) for host, port in probes[head].ports if port < 30000]
        assert own == [("0.0.0.0", port) for port in run_ports(f"{RUN_ID}-g{number + 1}")]
        assert ("0.0.0.0", 30001 + 4 * number) in probes[head].ports
    assert probes["router"].ports == (("127.0.0.1", 30000),) and probes["router"].router
    assert probes["router"].model_path is None
    # From a plan file the same is asked; where a group's API listens is known by then.
    again = [probe for plan in deployed().plans for probe in probes_for_plan(plan)]
    assert [item.node.name for item in again] == list(probes)
    assert [{port for _, port in item.ports} for item in again] == [
        {port for _, port in item.ports} for item in probes.values()
    ]


class Told:
    """What a check tells."""

    def __init__(self) -> None:
        self.findings: list[object] = []

    def finding(self, finding: object) -> None:
        self.findings.append(finding)

    def step(self, text: str) -> None:
        self.findings.append(text)


@pytest.mark.parametrize("version", [None, "0.3.1"])
def test_a_node_without_the_router_is_refused_before_anything_loads(version: str | None) -> None:
    router = deployed().router
    assert router is not None
    own = make_facts(router.head.node, RECIPE)
    engine = own.engine.model_copy(update={"sglang_router": version})
    with pytest.raises(PreflightRefused, match=r"sglang-router must be 0\.3\.2, got") as caught:
        check(router, {"router": own.model_copy(update={"engine": engine})}, Told(), skip=())  # type: ignore[arg-type]
    assert "pip install --no-deps sglang-router==0.3.2" in caught.value.hint
    engine = own.engine.model_copy(update={"sglang_router": "0.3.2"})
    assert find_problems(router, {"router": own.model_copy(update={"engine": engine})}) == ()


def test_a_node_may_not_have_the_routers_name() -> None:
    named = TOPOLOGY.nodes[3].model_copy(update={"name": "router"})
    topology = TOPOLOGY.model_copy(update={"nodes": (*TOPOLOGY.nodes[:3], named, *TOPOLOGY.nodes[4:])})
    with pytest.raises(ConfigError, match="must not be named 'router'"):
        nodes_to_reach(RECIPE, topology)


def test_groups_never_share_their_ports() -> None:
    """The blocks of two runs are the same once in 900; then `up` takes another id."""
    same = next(
        f"r{number}" for number in range(20000) if run_ports(f"r{number}-g1") == run_ports(f"r{number}-g2")
    )
    assert not ports_differ(RECIPE, same) and ports_differ(RECIPE, RUN_ID)


@pytest.fixture
def records(tmp_path: Path) -> RunRecords:
    records = RunRecords(tmp_path / "control")
    for plan in reversed(deployed().plans):
        records.save(RunRecord(plan=plan, status="ready", started_unix=1.0, timings={}))
    return records


def test_every_command_takes_groups_and_router_as_one_run(records: RunRecords) -> None:
    ids = [f"{RUN_ID}-g1", f"{RUN_ID}-g2", f"{RUN_ID}-router"]
    assert [item.run_id for item in records.choose_all(None)] == ids
    assert [item.run_id for item in records.choose_all(RUN_ID)] == ids
    assert [item.run_id for item in records.choose_all(ids[1])] == ids[1:2]
    # One of them is over: it still belongs to the others, and is told with them.
    records.update(records.load(ids[1]), status="failed")
    assert [item.run_id for item in records.choose_all(None)] == ids
    for run_id in ids:
        records.update(records.load(run_id), status="stopped")
    assert [item.run_id for item in records.choose_all(None)] == ids
    with pytest.raises(NoSuchRun):
        records.choose_all(f"{RUN_ID}-g3")


def test_a_group_that_is_replaced_takes_its_router_and_the_others_with_it(
    records: RunRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(end_run, "end_run", lambda record, records, options: ended.append(record.run_id))

    def replaced(*run_ids: str) -> list[str]:
        ended.clear()
        facts = all_facts(TOPOLOGY, RECIPE)
        alive = tuple(RunFacts(run_id=run_id, status="running", started="now") for run_id in run_ids)
        name = TOPOLOGY.nodes[0].name
        facts[name] = facts[name].model_copy(update={"live_runs": alive})
        up._end_other_groups(facts, records, Told())  # type: ignore[arg-type]
        return ended

    assert replaced(f"{RUN_ID}-g1") == [f"{RUN_ID}-router", f"{RUN_ID}-g1", f"{RUN_ID}-g2"]
    assert replaced("20260101-000000-1111") == []
    assert replaced("of-another-machine-g1") == []


def test_what_asks_one_engine_wants_one_group(records: RunRecords) -> None:
    with pytest.raises(UsageError, match=f"{RUN_ID} has 3: {RUN_ID}-g1, .*-router") as caught:
        records.choose(None)
    assert caught.value.hint == f"add --run {RUN_ID}-g1"
    assert records.choose(f"{RUN_ID}-g2").plan.part == "group 2"


def test_both_groups_read_the_packed_rows_of_four_ranks() -> None:
    packed = [probe.packed for probe in probes_for_deployment(RECIPE, TOPOLOGY, run_id=RUN_ID)]
    assert [item.ranks for item in packed if item] == [(0,), (1,), (2,), (3,)] * 2


def test_the_doctor_names_the_tables_of_a_groups_rank() -> None:
    """It looks at all groups in one plan."""
    facts = all_facts(TOPOLOGY, RECIPE)
    last = TOPOLOGY.nodes[7].name
    missing = PackedFacts(path="/engram", problem="no such directory")
    facts[last] = facts[last].model_copy(update={"packed": missing})
    (found,) = [item for item in find_problems(planned(), facts) if item.check == "engram-tables"]
    assert found.node == last and "--tp 4 --ranks 3" in found.hint


def test_a_living_group_is_ended_with_its_whole() -> None:
    facts = all_facts(TOPOLOGY, RECIPE)
    name = TOPOLOGY.nodes[0].name
    for run_id, whole in ((f"{RUN_ID}-g2", RUN_ID), (RUN_ID, RUN_ID)):
        alive = RunFacts(run_id=run_id, status="running", started="now")
        facts[name] = facts[name].model_copy(update={"live_runs": (alive,)})
        (found,) = [item for item in find_problems(planned(), facts) if item.check == "earlier-run"]
        assert f"sparkctl down --run {whole}," in found.hint


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


def test_a_part_names_the_whole() -> None:
    """So that the command for what still lives ends all of it."""
    for part in ("group 1", "group 12", "router"):
        assert whole_of(part_run_id(RUN_ID, part)) == RUN_ID
    assert whole_of(RUN_ID) == RUN_ID

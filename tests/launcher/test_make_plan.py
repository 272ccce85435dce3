from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ConfigError, PreflightRefused
from launcher.make_plan import FIRST_PORT, NUM_BLOCKS, PORT_BLOCK, make_plan, run_ports
from launcher.plan import LaunchPlan, plan_from_json, plan_to_json
from launcher.recipe import Recipe
from launcher.sglang_command import option_words
from launcher.topology import Topology
from tests.launcher.make_facts import all_facts, make_facts

HCAS = ["rocep1s0f0", "roceP2p1s0f0"]


def make_recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "schema_version": 1,
        "name": "test",
        "model": {"path": "m", "served_name": "m"},
        "engine": {"runtime": "venv"},
        "parallelism": {"nodes": 2, "tp": 2},
    }
    return Recipe.model_validate(values | changes)


def make_topology(**fabric: Any) -> Topology:
    nodes = [
        {
            "name": f"spark-{letter}",
            "ssh": {"host": f"{letter}.lan", "user": f"user-{letter}"},
            "fabric": {"address": f"10.1.0.{i}", "interface": f"enp{i}s0f0np0", "hcas": HCAS} | fabric,
        }
        for i, letter in ((1, "a"), (2, "b"))
    ]
    return Topology.model_validate(
        {"schema_version": 1, "name": "t", "links": {"layout": "pair"}, "nodes": nodes}
    )


def plan_of(
    recipe: Recipe | None = None, topology: Topology | None = None, run_id: str = "r1", **facts: Any
) -> LaunchPlan:
    recipe, topology = recipe or make_recipe(), topology or make_topology()
    return make_plan(
        recipe,
        topology,
        {node.name: make_facts(node, recipe, **facts) for node in topology.nodes},
        run_id=run_id,
    )


def test_every_node_has_its_own_names() -> None:
    plan = plan_of()
    first, second = plan.nodes
    assert first.environment["GLOO_SOCKET_IFNAME"] == first.environment["NCCL_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert (
        second.environment["GLOO_SOCKET_IFNAME"] == second.environment["NCCL_SOCKET_IFNAME"] == "enp2s0f0np0"
    )
    assert (first.environment["SGLANG_HOST_IP"], second.environment["SGLANG_HOST_IP"]) == (
        "10.1.0.1",
        "10.1.0.2",
    )
    assert (first.environment["HOME"], second.environment["HOME"]) == ("/home/user-a", "/home/user-b")
    assert second.argv[0] == "/home/user-b/.local/share/sparkctl/venv/bin/python"
    assert (
        second.argv[second.argv.index("--dist-init-addr") + 1]
        == plan.rendezvous
        == f"10.1.0.1:{run_ports('r1')[0]}"
    )


def test_workers_serve_on_loopback_even_when_the_api_is_exposed() -> None:
    plan = plan_of(make_recipe(server={"host": "0.0.0.0"}))
    hosts = [node.argv[node.argv.index("--host") + 1] for node in plan.nodes]
    assert hosts == ["0.0.0.0", "127.0.0.1"]
    assert plan.api.needs_key
    assert plan.api.url == "http://127.0.0.1:30000"


def test_loopback_api_needs_no_key() -> None:
    assert not plan_of().api.needs_key


def test_a_plan_holds_no_token_and_no_key() -> None:
    text = plan_to_json(plan_of(make_recipe(server={"host": "0.0.0.0"})))
    assert "token" not in text.replace("max_total_tokens", "")
    assert "api-key" not in text


def test_gid_index_is_the_one_of_the_fabric_address() -> None:
    gids = [{"index": 3, "address": "192.0.2.1"}, {"index": 5, "address": "10.1.0.1"}]
    topology = make_topology(hcas=["h0"])
    recipe = make_recipe()
    facts = all_facts(topology, recipe)
    hcas = [{"name": "h0", "netdev": "e", "state": "4: ACTIVE", "rocev2_gids": gids}]
    facts["spark-a"] = make_facts(topology.nodes[0], recipe, hcas=hcas)
    plan = make_plan(recipe, topology, facts, run_id="r1")
    assert [node.environment["NCCL_IB_GID_INDEX"] for node in plan.nodes] == ["5", "3"]


def test_gid_index_is_left_unset_where_hcas_differ_and_the_plan_says_so() -> None:
    hcas = [
        {
            "name": name,
            "netdev": "e",
            "state": "4: ACTIVE",
            "rocev2_gids": [{"index": index, "address": "10.9.9.9"}],
        }
        for name, index in zip(HCAS, (3, 5), strict=True)
    ]
    plan = plan_of(hcas=hcas)
    assert "NCCL_IB_GID_INDEX" not in plan.nodes[0].environment
    assert "rocep1s0f0 3, roceP2p1s0f0 5" in plan.nodes[0].notes[0]


def test_an_hca_without_a_gid_is_refused_with_what_the_node_has() -> None:
    with pytest.raises(PreflightRefused, match=r"rocep1s0f0.*node has none") as caught:
        plan_of(hcas=[])
    assert caught.value.node == "spark-a"
    assert "show_gids" in caught.value.hint


def test_bootstrap_interface_gives_the_address() -> None:
    plan = plan_of(topology=make_topology(socket_interface="enP7s7"))
    assert plan.rendezvous.startswith("192.0.2.1:")
    assert plan.nodes[1].environment["SGLANG_HOST_IP"] == "192.0.2.2"


def test_bootstrap_interface_without_address_is_refused() -> None:
    interfaces = [
        {"name": "enp1s0f0np0", "addresses": ["10.1.0.1"], "mtu": 9000, "state": "up", "speed_mbps": 1}
    ]
    with pytest.raises(PreflightRefused, match="socket_interface must be"):
        plan_of(topology=make_topology(socket_interface="enP7s7"), interfaces=interfaces)


def test_wrong_number_of_nodes_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have 3 nodes, got 2"):
        plan_of(make_recipe(parallelism={"nodes": 3, "tp": 3}))


def test_wrong_number_of_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have 2 GPUs"):
        plan_of(make_recipe(parallelism={"nodes": 2, "gpus_per_node": 2, "tp": 4}))


def test_docker_takes_values_from_its_environment_not_from_argv() -> None:
    image = "lmsysorg/sglang@sha256:" + "0" * 64
    plan = plan_of(
        make_recipe(engine={"runtime": "docker", "image": image}, environment={"SOME": "va'lue x"})
    )
    node = plan.nodes[0]
    assert node.container == "sparkctl-r1-spark-a"
    assert "va'lue x" not in " ".join(node.argv)
    assert node.argv[node.argv.index("SOME") - 1] == "--env"
    assert node.environment["SOME"] == "va'lue x"
    assert "--privileged" not in node.argv


def test_split_rows_on_gpus_are_planned_and_said_to_be_what_was_measured() -> None:
    split = {"nodes": 2, "tp": 2, "sequence_parallel": "prefill"}
    plan = plan_of(make_recipe(parallelism=split, engine={"runtime": "venv"}))
    assert plan.not_supported == ()
    (note,) = plan.head.notes
    assert "0.918, 0.940 and 1.041 times the speed" in note and "not run on a GB10" in note
    assert note.endswith("chunks of 2048 tokens and more are split") and plan.nodes[1].notes == ()
    for node in plan.nodes:
        assert node.environment["SPARKCTL_SEQUENCE_PARALLEL_FROM"] == "2048"
    later = plan_of(make_recipe(parallelism=split | {"sequence_parallel_from": 4096}))
    assert later.head.environment["SPARKCTL_SEQUENCE_PARALLEL_FROM"] == "4096"
    assert "chunks of 4096 tokens" in later.head.notes[0]
    on_cpus = plan_of(make_recipe(parallelism=split, engine={"runtime": "cpu"}))
    assert on_cpus.head.notes == ()


@pytest.mark.parametrize(("chunk", "refused"), [(1024, True), (2048, False), (-1, False), (None, False)])
def test_split_rows_need_a_chunk_that_is_long_enough(chunk: int | None, refused: bool) -> None:
    recipe = make_recipe(
        parallelism={"nodes": 2, "tp": 2, "sequence_parallel": "prefill"},
        server={"chunked_prefill_size": chunk},
    )
    if refused:
        with pytest.raises(ConfigError, match="must be at most the chunk of 1024 tokens, got 2048: no rows"):
            plan_of(recipe)
    else:
        plan_of(recipe)


def test_sequence_parallelism_and_the_plugins_backends_reach_the_engine_by_its_environment() -> None:
    split = {"nodes": 2, "tp": 2, "sequence_parallel": "prefill"}
    experts = {"experts": {"backend": "reference"}}
    plan = plan_of(make_recipe(parallelism=split, extensions=experts, engine={"runtime": "cpu"}))
    assert plan.not_supported == ()
    for node in plan.nodes:
        assert node.environment["SPARKCTL_SEQUENCE_PARALLEL"] == "prefill"
        assert node.environment["SPARKCTL_EXPERT_BACKEND"] == "reference"
        assert "--moe-runner-backend" not in node.argv
    marlin = plan_of(make_recipe(extensions={"experts": {"backend": "marlin"}})).nodes[0]
    assert marlin.argv[marlin.argv.index("--moe-runner-backend") + 1] == "marlin"
    ours = {
        "SPARKCTL_SEQUENCE_PARALLEL",
        "SPARKCTL_SEQUENCE_PARALLEL_FROM",
        "SPARKCTL_EXPERT_BACKEND",
        "SPARKCTL_KV_LAYOUT",
        "SPARKCTL_WO_A",
    }
    assert not ours & set(marlin.environment)
    compact = plan_of(make_recipe(extensions={"kv_layout": "v41"})).nodes[0]
    assert compact.environment["SPARKCTL_KV_LAYOUT"] == "v41"
    plain = plan_of(make_recipe(extensions={"wo_a": "bf16"})).nodes[0]
    assert plain.environment["SPARKCTL_WO_A"] == "bf16"
    smallest = plan_of(make_recipe(extensions={"kv_layout": "auto"})).nodes[0]
    assert smallest.environment["SPARKCTL_KV_LAYOUT"] == "auto"


def test_rows_from_disk_are_read_by_threads_on_the_cpu_engine_only() -> None:
    engram = {"engram": {"residence": "nvme", "packed_path": "v41/tp2"}}
    plan = plan_of(make_recipe(extensions=engram, engine={"runtime": "cpu"}))
    assert plan.nodes[1].environment["SPARKCTL_ENGRAM_BACKEND"] == "threads"
    on_gpus = plan_of(make_recipe(extensions=engram, engine={"runtime": "venv"}))
    assert on_gpus.not_supported == ()
    environment = on_gpus.nodes[1].environment
    assert environment["SPARKCTL_ENGRAM_DIR"].endswith("v41/tp2")
    assert not {"SPARKCTL_ENGRAM_BACKEND", "SPARKCTL_ENGRAM_BUFFERED"} & set(environment)


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_ports_of_runs(one: str, other: str) -> None:
    rendezvous, heartbeat = run_ports(one)
    assert FIRST_PORT <= rendezvous < heartbeat < FIRST_PORT + NUM_BLOCKS * PORT_BLOCK <= 32768
    assert run_ports(one) == (rendezvous, heartbeat)
    assert not {rendezvous, heartbeat} & set(run_ports(other)) or run_ports(other) == (rendezvous, heartbeat)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, []),
        (False, []),
        (True, ["--x"]),
        (3, ["--x", "3"]),
        (1800.0, ["--x", "1800"]),
        (0.95, ["--x", "0.95"]),
        ("a b", ["--x", "a b"]),
        ((1, "b"), ["--x", "1", "b"]),
    ],
)
def test_option_words(value: Any, words: list[str]) -> None:
    assert option_words("x", value) == words


def test_the_width_of_drafts_is_decided_where_its_cost_table_gets_to() -> None:
    dspark = {"dspark": {"enabled": True, "width": "auto", "verify": "compact"}}
    for runtime in ("cpu", "venv"):
        plan = plan_of(make_recipe(extensions=dspark, engine={"runtime": runtime}))
        assert plan.not_supported == ()
        for node in plan.nodes:
            table = f"{node.state_path}/cost-tables/{plan.recipe}.json"
            assert node.environment["SPARKCTL_SPEC"] == "1"
            assert node.environment["SGLANG_RAGGED_VERIFY_MODE"] == "compact"
            assert node.environment["SPARKCTL_SPEC_TABLE"] == table
    image = {"runtime": "docker", "image": "sparkctl@sha256:" + "0" * 64}
    (reason,) = plan_of(make_recipe(extensions=dspark, engine=image)).not_supported
    assert "extensions.dspark.width: auto in a container" in reason


def test_plan_survives_json() -> None:
    plan = plan_of(make_recipe(server={"host": "0.0.0.0"}, extensions={"dspark": {"enabled": True}}))
    assert plan_from_json(plan_to_json(plan)) == plan
    assert dataclasses.is_dataclass(plan)


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"schema_version": 1}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no launch plan"):
        plan_from_json(text, source="p.json")


def test_a_plan_of_another_version_is_refused() -> None:
    text = plan_to_json(plan_of()).replace(
        '"schema_version": 1,\n  "sglang', '"schema_version": 9,\n  "sglang'
    )
    assert '"schema_version": 9' in text
    with pytest.raises(ConfigError, match="must have schema_version 1, got 9"):
        plan_from_json(text)


def test_a_key_that_nobody_reads_is_refused() -> None:
    text = plan_to_json(plan_of()).replace('"run_id": "r1"', '"run_id": "r1", "rendezvouz": "x"')
    with pytest.raises(ConfigError, match="rendezvouz"):
        plan_from_json(text)

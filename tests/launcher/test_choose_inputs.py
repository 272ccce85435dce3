from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.choose_inputs import choose_inputs, default_topology_path
from launcher.compose_recipe import load_recipe
from launcher.errors import ConfigError, SparkctlError, UsageError
from launcher.make_plan import make_plan
from launcher.plan import plan_from_json, plan_to_json
from tests.launcher.make_facts import all_facts

THREE = """
schema_version: 1
name: mine
links: {layout: triangle}
nodes:
  - {name: a, ssh: {host: a.lan}, fabric: {address: 10.1.0.1, interface: e0}}
  - {name: b, ssh: {host: b.lan}, fabric: {address: 10.1.0.2, interface: e0}}
  - {name: c, ssh: {host: c.lan}, fabric: {address: 10.1.0.3, interface: e0}}
"""


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def write_default(text: str = THREE) -> None:
    path = default_topology_path()
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_embedded_default(count: int) -> None:
    inputs = choose_inputs(recipe=None, topology=None, nodes=count, port=None)
    assert len(inputs.topology.nodes) == inputs.recipe.parallelism.tp == count
    assert inputs.recipe.name == "local-v41" and inputs.is_embedded
    assert inputs.recipe.extensions.engram.packed_path == f"tiny-v41/tp{count}"
    assert {node.paths.engine for node in inputs.topology.nodes} == {sys.prefix}
    assert "this machine" in inputs.how


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_local_recipe_runs_on_as_many_nodes_as_asked_for(count: int) -> None:
    inputs = choose_inputs(recipe="local-v41-dspark", topology=None, nodes=count, port=None)
    assert inputs.recipe.extensions.dspark.enabled and inputs.recipe.extensions.dspark.block_size == 5
    assert inputs.recipe.extensions.engram.packed_path == f"tiny-v41/tp{count}"
    facts = all_facts(inputs.topology, inputs.recipe)
    plan = make_plan(inputs.recipe, inputs.topology, facts, run_id="r")
    for node in plan.nodes:
        words = " ".join(node.argv)
        assert f"--tp-size {count} --nnodes {count} " in words and "--speculative-algorithm DSPARK" in words
        assert node.environment["SPARKCTL_ENGRAM_DIR"].endswith(f"/tiny-v41/tp{count}")
    assert plan.not_supported == ()


def test_tables_of_one_split_only_are_not_run_on_another(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "schema_version: 1\nname: mine\nextends: local-v41\nextensions: {engram: {packed_path: mine}}\n"
    )
    with pytest.raises(UsageError, match="--nodes must be 3 for recipe mine, got 2"):
        choose_inputs(recipe=str(own), topology=None, nodes=2, port=None)


def test_without_anything_there_are_three_nodes() -> None:
    assert len(choose_inputs(recipe=None, topology=None, nodes=None, port=None).topology.nodes) == 3


def test_the_embedded_default_does_not_take_the_users_sparks() -> None:
    write_default()
    inputs = choose_inputs(recipe=None, topology=None, nodes=3, port=None)
    assert {node.connection for node in inputs.topology.nodes} == {"local"}


def test_a_recipe_for_the_cpu_engine_takes_this_machine(tmp_path: Path) -> None:
    write_default()
    own = tmp_path / "mine.yaml"
    own.write_text("schema_version: 1\nname: mine\nextends: local-v41\n")
    for recipe in ("local-v41", str(own)):
        inputs = choose_inputs(recipe=recipe, topology=None, nodes=None, port=None)
        assert {node.connection for node in inputs.topology.nodes} == {"local"}
        assert {node.paths.engram for node in inputs.topology.nodes} == {"~/.local/share/sparkctl/engram"}


def test_too_many_local_nodes() -> None:
    with pytest.raises(UsageError, match="1 to 4 for the embedded default, got 9"):
        choose_inputs(recipe=None, topology=None, nodes=9, port=None)


def test_a_recipe_takes_the_users_topology() -> None:
    write_default()
    inputs = choose_inputs(recipe="v41-flash-3x", topology=None, nodes=None, port=31000)
    assert [node.name for node in inputs.topology.nodes] == ["a", "b", "c"]
    assert inputs.recipe.server.port == 31000


def test_a_recipe_for_fewer_nodes_takes_the_first_ones() -> None:
    write_default()
    inputs = choose_inputs(recipe="v4-flash-2x", topology=None, nodes=None, port=None)
    assert [node.name for node in inputs.topology.nodes] == ["a", "b"]


def test_too_few_nodes_in_the_file() -> None:
    write_default()
    with pytest.raises(UsageError, match="4 nodes must be in") as caught:
        choose_inputs(recipe="v41-flash-4x", topology=None, nodes=None, port=None)
    # Without the path it would show the embedded default.
    assert caught.value.hint == f"sparkctl topology show {default_topology_path()}"


def test_no_topology_yet_says_how_to_write_one() -> None:
    with pytest.raises(UsageError) as caught:
        choose_inputs(recipe="v41-flash-3x", topology=None, nodes=None, port=None)
    assert "sparkctl topology init --nodes" in caught.value.hint


def test_a_topology_without_a_recipe() -> None:
    with pytest.raises(UsageError, match="a recipe must be named"):
        choose_inputs(recipe=None, topology="x.yaml", nodes=None, port=None)


@pytest.mark.parametrize("name", ["no-such-recipe", "./missing.yaml"])
def test_a_missing_recipe_is_one_clear_error(name: str) -> None:
    with pytest.raises(SparkctlError) as caught:
        choose_inputs(recipe=name, topology=None, nodes=None, port=None)
    assert caught.value.exit_code in (UsageError.exit_code, ConfigError.exit_code)
    assert caught.value.hint


def test_the_plan_carries_the_recipe_as_it_is_without_options_of_the_command(tmp_path: Path) -> None:
    """A result says what ran after the recipe's file has changed; another port is no other recipe."""
    own = tmp_path / "mine.yaml"
    own.write_text("schema_version: 1\nname: mine\nextends: local\nserver: {max_running_requests: 3}\n")
    inputs = choose_inputs(recipe=str(own), topology=None, nodes=None, port=31234)
    facts = all_facts(inputs.topology, inputs.recipe)
    plan = make_plan(inputs.recipe, inputs.topology, facts, run_id="r", values=inputs.values)
    own.unlink()
    read = plan_from_json(plan_to_json(plan))
    assert read == plan and read.values is not None
    assert (read.api.port, read.values.server.port) == (31234, load_recipe("local")[0].server.port)
    assert read.values.server.max_running_requests == 3
    write_default()
    remote = choose_inputs(recipe="v41-flash-3x", topology=None, nodes=None, port=31234)
    assert remote.values == load_recipe("v41-flash-3x")[0] != remote.recipe

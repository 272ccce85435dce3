"""Add, search, pull, upgrade, push and lock, as a user types them, with the real git."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from launcher.choose_inputs import choose_inputs
from launcher.cli.recipe import app
from launcher.compose_recipe import load_recipe
from launcher.errors import ConfigError, SparkctlError, UsageError
from launcher.make_plan import make_plan
from launcher.node_facts import NodeFacts
from launcher.plan import plan_from_json, plan_to_json
from launcher.preflight import find_problems
from launcher.registry.registries import load_registry
from launcher.registry.update_registry import add_registry, update_registry
from tests.launcher.make_facts import all_facts
from tests.launcher.registry.conftest import Author, recipe_bytes, registry_files

ONE, TWO = recipe_bytes(), recipe_bytes(server={"flags": {"device": "cpu"}, "max_running_requests": 2})


def run(*words: str) -> dict:  # type: ignore[type-arg]
    result = CliRunner().invoke(app, [*words, "--json"])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    value: dict = json.loads(result.stdout)  # type: ignore[type-arg]
    return value


def test_pull_upgrade_and_rollback(author: Author) -> None:
    author.publish(registry_files({"small": {"1.0.0": ONE}}))
    assert run("registry", "add", "team", str(author.path))["num_recipes"] == 1
    pulled = run("pull", "@team/small")
    assert Path(pulled["file"]).read_bytes() == ONE
    author.publish(registry_files({"small": {"1.0.0": ONE, "1.10.0": TWO}}))
    assert run("registry", "update")[0]["added"] == ["small 1.10.0"]
    found = run("search", "SMALL", "qwen")
    assert [(item["newest"], item["used"]) for item in found] == [("1.10.0", "1.0.0")]
    change = [{"key": "server.max_running_requests", "old": None, "new": 2}]
    assert run("diff", "@team/small")["changes"] == change
    assert run("upgrade", "@team/small")["changes"] == change
    assert load_recipe("@team/small")[0].server.max_running_requests == 2
    assert load_recipe("@team/small@1.0.0")[0].server.max_running_requests is None
    assert run("rollback", "@team/small")["new"] == "1.0.0"
    assert load_recipe("@team/small")[0].server.max_running_requests is None
    with pytest.raises(UsageError, match="must have been used in an earlier version"):
        run("rollback", "@team/small")
    run("registry", "remove", "team")
    assert load_recipe("@team/small")[0].name == "small"


def test_a_registry_recipe_is_planned_and_extended(author: Author, tmp_path: Path) -> None:
    author.publish(registry_files({"small": {"1.0.0": ONE}}))
    run("registry", "add", "team", str(author.path))
    run("pull", "@team/small@1.0.0")
    inputs = choose_inputs(recipe="@team/small", topology=None, nodes=None, port=None)
    assert (inputs.recipe.name, len(inputs.topology.nodes)) == ("small", 2)
    mine = tmp_path / "mine.yaml"
    mine.write_text('schema_version: 1\nname: mine\nextends: "@team/small@1.0.0"\nserver: {port: 31000}\n')
    assert load_recipe(str(mine))[0].server.flags == {"device": "cpu"}


def test_a_version_never_changes(author: Author) -> None:
    author.publish(registry_files({"small": {"1.0.0": ONE}}))
    run("registry", "add", "team", str(author.path))
    file = Path(run("pull", "@team/small")["file"])
    author.publish(registry_files({"small": {"1.0.0": TWO}}))
    run("registry", "update")
    with pytest.raises(ConfigError, match="must stay what it was when it was pulled"):
        run("pull", "@team/small")
    file.write_bytes(TWO)
    with pytest.raises(ConfigError, match="must be as it was pulled"):
        load_recipe("@team/small")


def test_an_update_that_is_refused_keeps_the_old_copy(author: Author) -> None:
    author.publish(registry_files({"small": {"1.0.0": ONE}}))
    before = add_registry("team", str(author.path), None, 0.0).registry
    author.publish({**registry_files({"small": {"1.0.0": ONE}}), "index.yaml": b"schema_version: 2\n"})
    result = CliRunner().invoke(app, ["registry", "update", "--json"])
    assert result.exit_code == 3 and "schema_version must be 1" in json.loads(result.stdout)[0]["error"]
    assert load_registry("team") == before
    run("pull", "@team/small")


def test_an_update_that_is_killed_keeps_the_old_copy(author: Author, home: Path) -> None:
    author.publish(registry_files({"small": {"1.0.0": ONE}}))
    before = add_registry("team", str(author.path), None, 0.0).registry
    author.publish(registry_files({"small": {"1.0.0": ONE, "1.1.0": TWO}}))
    words = [sys.executable, "-m", "launcher", "recipe", "registry", "update"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    copies = home / "data/sparkctl/registries/team"
    while process.poll() is None and len(list(copies.glob("copy-*"))) < 2:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    now = load_registry("team")
    assert now == before or now.commit != before.commit  # killed before, or just after, it was named
    assert run("search")[0]["newest"] in ("1.0.0", "1.1.0")
    assert update_registry("team", 1.0).num_recipes == 1
    assert len(list(copies.glob("copy-*"))) <= 2


def test_updates_at_the_same_time(author: Author) -> None:
    author.publish(registry_files({"small": {"1.0.0": ONE}}))
    words = [sys.executable, "-m", "launcher", "recipe", "registry", "add", "team", str(author.path)]
    running = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    run("pull", "@team/small")


def test_push_begins_a_registry_then_adds_for_review(author: Author, tmp_path: Path) -> None:
    mine = tmp_path / "small.yaml"
    mine.write_bytes(ONE)
    first = run("push", str(mine), "@team", "--new", str(author.path))
    assert (first["reference"], first["branch"]) == ("@team/small@1.0.0", "main")
    run("registry", "add", "team", str(author.path))
    mine.write_bytes(TWO)
    second = run("push", str(mine), "@team")
    assert second["branch"] == "sparkctl/small-1.0.1"
    assert author.git("rev-parse", "main") == first["commit"] != second["commit"]
    assert author.git("log", "-1", "--format=%an %ae", second["commit"]) == "Ada ada@example.org"
    with pytest.raises(UsageError, match="it is: a version never changes"):
        run("push", str(mine), "@team", "--version", "1.0.0")
    run("push", str(mine), "@team", "--branch", "main", "--version", "2.0.0")
    run("registry", "update")
    assert run("pull", "@team/small")["reference"] == "@team/small@2.0.0"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment": {"SGLANG_X": "hf_" + "a" * 30}}, "must hold no secret"),
        ({"model": {"path": "/models/x"}}, "no path of a machine"),
        ({"description": "runs on 10.0.0.7"}, "no address of a machine"),
        ({"surprise": 1}, "must be a known key"),
    ],
)
def test_push_refuses(author: Author, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    mine = tmp_path / "small.yaml"
    mine.write_bytes(recipe_bytes(**changes))
    with pytest.raises(ConfigError, match=said) as caught:
        run("push", str(mine), "@team", "--new", str(author.path))
    assert "aaaa" not in caught.value.message
    assert author.git("for-each-ref") == ""


def checkpoint(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


def test_lock_is_carried_by_the_plan_and_refuses_what_differs(tmp_path: Path) -> None:
    mine = tmp_path / "small.yaml"
    mine.write_bytes(ONE)
    said = run("lock", str(mine), "--checkpoint", str(checkpoint(tmp_path / "model")))
    assert said["file"] == str(tmp_path / "small.lock.yaml")
    inputs = choose_inputs(recipe=str(mine), topology=None, nodes=None, port=31234)
    assert inputs.lock is not None and inputs.lock.differences == ()
    assert set(inputs.lock.files) == {"config.json", "model.safetensors"}
    assert {"sgl_ext", "engram"} <= set(inputs.lock.content)
    mine.write_bytes(TWO)
    changed = choose_inputs(recipe=str(mine), topology=None, nodes=None, port=None)
    facts: dict[str, NodeFacts] = all_facts(changed.topology, changed.recipe)
    plan = make_plan(changed.recipe, changed.topology, facts, run_id="r", lock=changed.lock)
    assert plan_from_json(plan_to_json(plan)) == plan
    found = [item for item in find_problems(plan, facts) if item.check == "recipe-lock"]
    assert len(found) == 1 and "the recipe's sha256 must be" in found[0].evidence
    assert "sparkctl up --unlocked" in found[0].fix


def test_a_lock_holds_under_any_profile_and_covers_them_all(tmp_path: Path) -> None:
    mine = tmp_path / "small.yaml"
    batch = {"batch": {"server": {"max_running_requests": 2}}}
    mine.write_bytes(recipe_bytes(profiles=batch))
    run("lock", str(mine), "--checkpoint", str(checkpoint(tmp_path / "model")))
    for profile in (None, "batch"):
        inputs = choose_inputs(recipe=str(mine), topology=None, nodes=None, port=None, profile=profile)
        assert inputs.lock is not None and inputs.lock.differences == ()
        assert inputs.values is not None and inputs.values.profile == profile
    mine.write_bytes(recipe_bytes(profiles={"batch": {"server": {"max_running_requests": 3}}}))
    changed = choose_inputs(recipe=str(mine), topology=None, nodes=None, port=None)
    assert changed.lock is not None and "the recipe's sha256 must be" in changed.lock.differences[0]


def test_lock_names_what_a_node_has_otherwise(tmp_path: Path) -> None:
    from dataclasses import replace

    from launcher.doctor.software_facts import Content, Identity
    from launcher.registry.check_lock import NodeContent, node_findings

    mine = tmp_path / "small.yaml"
    mine.write_bytes(ONE)
    run("lock", str(mine), "--checkpoint", str(checkpoint(tmp_path / "model")))
    inputs = choose_inputs(recipe=str(mine), topology=None, nodes=1, port=None)
    assert inputs.lock is not None
    facts = all_facts(inputs.topology, inputs.recipe)
    both = choose_inputs(recipe=str(mine), topology=None, nodes=None, port=None)
    facts = all_facts(both.topology, both.recipe)
    plan = make_plan(both.recipe, both.topology, facts, run_id="r", lock=both.lock)
    content = {name: Content(sha256=value, num_files=1) for name, value in inputs.lock.content.items()}
    good = Identity(problem=None, versions=dict(inputs.lock.versions), content=content)
    same = NodeContent(identity=good, files=inputs.lock.files)
    assert node_findings(plan, {node.name: same for node in plan.nodes}) == ()
    edited = good.model_copy(
        update={"content": {**content, "sgl_ext": Content(sha256="0" * 64, num_files=1)}}
    )
    files = {**inputs.lock.files, "model.safetensors": "0" * 64}
    other = replace(same, identity=edited, files=files)
    found = node_findings(plan, {plan.nodes[0].name: same, plan.nodes[1].name: other})
    assert [item.level for item in found] == ["refuse", "refuse"]
    assert {item.node for item in found} == {plan.nodes[1].name}
    assert "the files of sgl_ext must be" in found[0].evidence
    assert "model file model.safetensors must have sha256" in found[1].evidence
    unknown = replace(same, files=None, why="no manifest")
    warned = node_findings(plan, {node.name: unknown for node in plan.nodes})
    assert {item.level for item in warned} == {"warn"}


def test_500_recipes(author: Author) -> None:
    """The bar is 1 s on a quiet machine (benchmarks/registry.py); here with slack for a busy one."""
    recipes = {f"r{number}": {"1.0.0": recipe_bytes(f"r{number}")} for number in range(500)}
    files = registry_files(recipes)
    work = author.path.parent / "work"
    for path, content in files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(content)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=work, check=True, env=dict(os.environ))
    started = time.process_time()
    assert add_registry("team", str(work), None, 0.0).num_recipes == 500
    assert len(run("search")) == 500
    run("pull", "@team/r250")
    assert time.process_time() - started < 4


def test_errors_name_the_next_command() -> None:
    for words in (
        ["pull", "@team/x"],
        ["upgrade", "@team/x"],
        ["diff", "@team/x"],
        ["registry", "update", "team"],
    ):
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, SparkctlError):
            assert "sparkctl recipe" in result.exception.hint
        else:
            assert result.exit_code == 2
    assert yaml.safe_load(ONE)["name"] == "small"

"""A plan that a person edited: what nobody could carry out is refused before any node is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.plan import plan_from_json, plan_to_json
from launcher.plan_rules import is_run_id
from tests.launcher.local_plan import local_plan
from tests.launcher.test_make_plan import make_recipe, plan_of

Plan = dict[str, Any]


def nodes(index: int, **changes: Any) -> Callable[[Plan], None]:
    return lambda plan: plan["nodes"][index].update(changes)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda plan: plan.update(run_id="../../x"), "run_id must be 1 to 64"),
        (lambda plan: plan.update(run_id=""), "run_id must be 1 to 64"),
        (lambda plan: plan.update(nodes=[]), "nodes must be a list of at least 1"),
        (lambda plan: plan["api"].update(port=0), "api.port must be 1 to 65535, got 0"),
        (lambda plan: plan.update(nodes=[plan["nodes"][0]] * 2), "node names must differ"),
        (nodes(1, ranks=[0]), "ranks must be 0, 1, 2"),
        (nodes(1, ranks=[]), "ranks must be 0, 1, 2"),
        (nodes(1, is_head=True), "nodes.1 must have node_rank 1 and is_head False"),
        (nodes(0, node_rank=1), "nodes.0 must have node_rank 0"),
        (nodes(0, state_path="state"), "nodes.0.state_path must be an absolute path"),
        (nodes(0, state_path="/a/../b"), "nodes.0.state_path must be an absolute path"),
        (nodes(0, argv=[]), "nodes.0.argv must be"),
        (nodes(0, argv=["a\0b"]), "nodes.0.argv must be"),
        (nodes(1, environment={"A=B": "x"}), "nodes.1.environment must map"),
        (nodes(1, environment={"A": "x\0"}), "nodes.1.environment must map"),
    ],
)
def test_an_impossible_plan_is_refused(edit: Callable[[Plan], None], says: str) -> None:
    value = json.loads(plan_to_json(local_plan(2)))
    edit(value)
    with pytest.raises(ConfigError) as caught:
        plan_from_json(json.dumps(value), source="plan.json")
    assert caught.value.message.startswith("plan.json is no launch plan: " + says)
    assert "sparkctl plan --output" in caught.value.hint


IMAGE = "lmsysorg/sglang@sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("lmsysorg/sglang:latest", "nodes.1.argv must name its image as NAME@sha256:64 hex digits, got 'lms"),
        (IMAGE[:-1], "nodes.1.argv must name its image"),
        (IMAGE + "x", "nodes.1.argv must name its image"),
        (None, "nodes.1.argv must be docker run ... IMAGE python3 -m sglang.launch_server"),
    ],
)
def test_a_container_is_run_by_digest_from_a_plan_too(image: str | None, says: str) -> None:
    plan = plan_of(make_recipe(engine={"runtime": "docker", "image": IMAGE}))
    assert plan_from_json(plan_to_json(plan)).nodes[1].argv.count(IMAGE) == 1
    value = json.loads(plan_to_json(plan))
    words = value["nodes"][1]["argv"]
    at = words.index(IMAGE)
    words[at : at + 1] = [image] if image else []
    if image is None:
        words[0] = "podman"
    with pytest.raises(ConfigError) as caught:
        plan_from_json(json.dumps(value), source="plan.json")
    assert caught.value.message.startswith("plan.json is no launch plan: " + says)


def test_only_docker_has_containers() -> None:
    value = json.loads(plan_to_json(local_plan(2)))
    value["nodes"][0]["container"] = "sparkctl-x"
    with pytest.raises(ConfigError, match=r"nodes\.0\.container must be null with runtime cpu"):
        plan_from_json(json.dumps(value))
    value["runtime"] = "docker"
    with pytest.raises(ConfigError, match="must be docker run"):
        plan_from_json(json.dumps(value))


@pytest.mark.parametrize("run_id", ["20260102-150405-1a2b", "a", "x" * 64])
def test_usual_run_ids_pass(run_id: str) -> None:
    assert is_run_id(run_id)
    assert plan_from_json(plan_to_json(local_plan(3, run_id))).run_id == run_id


@pytest.mark.parametrize("run_id", ["", ".", "..", "-a", "a/b", "a b", "a\n", "x" * 65, "\u00fc"])
def test_a_run_id_is_a_plain_file_name(run_id: str) -> None:
    assert not is_run_id(run_id)

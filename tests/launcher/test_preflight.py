from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.doctor.finding import Finding
from launcher.errors import PreflightRefused
from launcher.launch_cluster import refuse
from launcher.preflight import find_problems
from tests.launcher.make_facts import make_facts
from tests.launcher.test_make_plan import make_recipe, make_topology, plan_of


def problems_of(node: str = "spark-b", **facts: Any) -> list[tuple[str, str, str, str]]:
    """Findings when one node's facts are changed."""
    recipe, topology = make_recipe(), make_topology()
    plan = plan_of(recipe, topology)
    all_facts = {
        item.name: make_facts(item, recipe, **(facts if item.name == node else {})) for item in topology.nodes
    }
    return [(item.check, item.node, item.message, item.hint) for item in find_problems(plan, all_facts)]


def test_healthy_nodes_have_no_findings() -> None:
    assert problems_of() == []


@pytest.mark.parametrize(
    ("check", "facts", "words", "next_command"),
    [
        (
            "earlier-run",
            {"live_runs": [{"run_id": "r0", "status": "running", "started": "noon"}]},
            "r0 (running) since noon",
            "sparkctl down --run r0",
        ),
        ("state-directory", {"state_problem": "/x is not writable"}, "/x is not writable", "paths.state"),
        (
            "engine",
            {"engine": {"problem": "there is no /v/bin/python"}},
            "there is no /v/bin/python",
            "paths.engine",
        ),
        (
            "engine-version",
            {
                "engine": {
                    "problem": None,
                    "python": "p",
                    "sglang": "0.5.21",
                    "sparkctl": "0.1.0",
                    "torch": "2.14.1",
                }
            },
            "sglang must be 0.5.23, got 0.5.21",
            "engine.sglang_version",
        ),
        (
            "engine-plugin",
            {
                "engine": {
                    "problem": None,
                    "python": "p",
                    "sglang": "0.5.23",
                    "sparkctl": None,
                    "torch": "2.14.1",
                }
            },
            "sparkctl's plugin, got none",
            "pip install",
        ),
        (
            "model",
            {"model": {"path": "/m", "problem": "2 of 48 weight files are missing: a, b"}},
            "2 of 48 weight files are missing",
            "sparkctl weights fetch",
        ),
        (
            "port",
            {"busy_ports": [["127.0.0.1", 30001, "in use"]]},
            "127.0.0.1:30001 must be free",
            "ss -ltnp",
        ),
        (
            "interface",
            {
                "interfaces": [
                    {"name": "lo", "addresses": ["127.0.0.1"], "mtu": 1, "state": "up", "speed_mbps": None}
                ]
            },
            "got 'enp2s0f0np0'",
            "topology",
        ),
        (
            "fabric-address",
            {
                "interfaces": [
                    {
                        "name": "enp2s0f0np0",
                        "addresses": ["10.1.0.9"],
                        "mtu": 1,
                        "state": "up",
                        "speed_mbps": None,
                    }
                ]
            },
            "got 10.1.0.2",
            "netplan",
        ),
    ],
)
def test_one_wrong_thing_on_one_node(
    check: str, facts: dict[str, Any], words: str, next_command: str
) -> None:
    found = problems_of(**facts)
    mine = [item for item in found if item[0] == check]
    assert len(mine) == 1, found
    _, node, message, hint = mine[0]
    assert node == "spark-b"
    assert words in message
    assert next_command in hint


def test_head_ports_are_told_apart() -> None:
    plan = plan_of()
    rendezvous = int(plan.rendezvous.rsplit(":", 1)[1])
    found = problems_of(
        "spark-a",
        busy_ports=[
            ["127.0.0.1", 30000, "in use"],
            ["0.0.0.0", rendezvous, "in use"],
            ["10.9.9.9", 30000, "cannot assign"],
        ],
    )
    messages = [message for _, _, message, _ in found]
    assert messages[0].startswith("API port 127.0.0.1:30000 must be free")
    assert messages[1].startswith(f"the run's own port {rendezvous}")
    assert messages[2].startswith("the API must be able to listen on 10.9.9.9:30000")


def test_different_versions_are_refused_with_both() -> None:
    engine = {"problem": None, "python": "p", "sglang": "0.5.23", "sparkctl": "0.1.0", "torch": "2.11.0"}
    ((check, _, message, _),) = problems_of(engine=engine)
    assert check == "same-versions"
    assert "spark-a 2.14.1, spark-b 2.11.0" in message


def test_missing_packed_tables_are_refused_with_the_command_that_packs_them() -> None:
    missing = {"path": "/e/my tables", "problem": "no such directory"}
    ((check, node, message, hint),) = problems_of(packed=missing)
    assert (check, node) == ("engram-tables", "spark-b")
    assert "/e/my tables: no such directory" in message
    assert hint.startswith("on spark-b: sparkctl engram pack --checkpoint ")
    assert hint.endswith("--out '/e/my tables' --tp 2 --ranks 1")
    assert problems_of(packed=missing | {"problem": None}) == []


def test_unsupported_settings_are_refused() -> None:
    dspark = {"dspark": {"enabled": True, "width": "auto", "verify": "compact"}}
    image = {"runtime": "docker", "image": "sparkctl@sha256:" + "0" * 64}
    recipe, topology = make_recipe(extensions=dspark, engine=image), make_topology()
    facts = {item.name: make_facts(item, recipe) for item in topology.nodes}
    found = [item for item in find_problems(plan_of(recipe, topology), facts) if item.level == "refuse"]
    assert [item.check for item in found] == ["not-supported"]


def test_split_rows_on_gpus_are_said_to_be_what_was_measured() -> None:
    topology = make_topology()
    for runtime, mode, wanted in (
        ("venv", "prefill", ["split-rows"]),
        ("venv", "off", []),
        ("cpu", "prefill", []),
    ):
        recipe = make_recipe(
            parallelism={"nodes": 2, "tp": 2, "sequence_parallel": mode}, engine={"runtime": runtime}
        )
        facts = {item.name: make_facts(item, recipe) for item in topology.nodes}
        found = find_problems(plan_of(recipe, topology), facts)
        assert [item.check for item in found if item.level == "warn"] == wanted
        assert all("not run on a GB10" in item.evidence for item in found if item.level == "warn")
        assert not [item for item in found if item.level == "refuse"]


def test_a_recipe_for_gpus_that_nobody_ran_is_said_to_be_so() -> None:
    topology = make_topology()
    for runtime, wanted in (("venv", [("evidence", "warn")]), ("cpu", [])):
        recipe = make_recipe(parallelism={"nodes": 2, "tp": 2}, engine={"runtime": runtime})
        plan = replace(plan_of(recipe, topology), values=recipe)
        facts = {item.name: make_facts(item, recipe) for item in topology.nodes}
        assert [(item.check, item.level) for item in find_problems(plan, facts)] == wanted


def test_widths_that_no_gpu_has_decided_are_said_to_be_so() -> None:
    topology = make_topology()
    for runtime, width, wanted in (
        ("venv", "auto", ["draft-widths"]),
        ("venv", "block", []),
        ("cpu", "auto", []),
    ):
        dspark = {"dspark": {"enabled": True, "width": width}}
        recipe = make_recipe(
            parallelism={"nodes": 2, "tp": 2}, engine={"runtime": runtime}, extensions=dspark
        )
        facts = {item.name: make_facts(item, recipe) for item in topology.nodes}
        found = find_problems(plan_of(recipe, topology), facts)
        assert [item.check for item in found if item.level == "warn"] == wanted
        assert not [item for item in found if item.level == "refuse"]


def test_a_fix_that_several_nodes_share_is_told_once() -> None:
    fixes = {"a": "pin it", "b": "pin it", "c": "free the port"}
    findings = [
        Finding(level="refuse", check="lock", node=node, evidence=f"{node} is wrong", fix=fix)
        for node, fix in fixes.items()
    ]
    progress: Any = SimpleNamespace(finding=lambda finding: None)
    with pytest.raises(PreflightRefused) as caught:
        refuse(findings, progress, skip=())
    assert caught.value.hint == findings[0].hint and "pin it" in caught.value.hint
    assert "pin it" not in caught.value.message
    assert caught.value.message.splitlines() == [
        "a is wrong", "b: b is wrong", "c: c is wrong", f"  -> {findings[2].hint}"
    ]  # fmt: skip

"""Nodes that answer late, half or garbage; tools that are missing or hang:
one clear finding each, never a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.plan import describe_plan
from launcher.doctor.case import Case
from launcher.doctor.check_names import LAUNCH_CHECKS
from launcher.doctor.examine import CHECKS, examine
from launcher.doctor.gather_reports import gather_reports, parts_for, questions_for_recipe
from launcher.doctor.host_memory import CLOCK_SKEW_S
from launcher.doctor.known_bad import known_bad
from launcher.doctor.node_report import NodeReport, read_report
from launcher.doctor.plan_anyway import plan_anyway
from launcher.errors import NodeFailed
from launcher.node.doctor import doctor
from launcher.preflight import find_problems
from launcher.remote import RemoteResult, RemoteStream
from launcher.run_on_all import Result
from tests.launcher.doctor.clusters import (
    PARTS,
    case_of,
    healthy_reports,
    ill_case,
    problems,
    recipe_for,
    report_of,
    topology_for,
    tree_of,
    with_clock,
)
from tests.launcher.doctor.spark_tree import HOME, SparkTree
from tests.launcher.make_facts import all_facts


class AnsweringRemote:
    """A node that says one thing, whatever it is asked."""

    is_local = False

    def __init__(
        self,
        node: str,
        stdout: bytes = b"",
        *,
        status: int = 0,
        stderr: bytes = b"",
        error: Exception | None = None,
    ) -> None:
        self.node = node
        self._result = RemoteResult(exit_status=status, stdout=stdout, stderr=stderr)
        self._error = error

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> RemoteResult:
        if self._error:
            raise self._error
        return self._result

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> RemoteStream:
        raise AssertionError("nothing is streamed to a node that did not answer")

    def close(self) -> None:
        pass


LATE = NodeFailed("python3 must end within 20 s, it did not")


@pytest.mark.parametrize(
    ("remote", "words"),
    [
        (AnsweringRemote("spark-b", error=LATE), "must end within 20 s"),
        (AnsweringRemote("spark-b", b'{"host": {"kern\n'), "no JSON"),
        (AnsweringRemote("spark-b", b"Welcome to DGX OS\n"), "no JSON"),
        (AnsweringRemote("spark-b", b"[1, 2]\n"), "answered list"),
        (AnsweringRemote("spark-b", status=127, stderr=b"sh: python3: not found"), "python3: not found"),
        (
            AnsweringRemote("spark-b", status=1, stderr=b"OSError: [Errno 28] No space left on device"),
            "No space left",
        ),
        (AnsweringRemote("spark-b", b'{"error": "MemoryError", "where": "x.py:1 (f)"}\n'), "MemoryError"),
    ],
    ids=["late", "half", "banner", "list", "no python", "full disk", "failed"],
)
def test_a_node_that_answers_wrongly_is_one_finding(remote: AnsweringRemote, words: str) -> None:
    topology, recipe = topology_for("pair"), recipe_for("pair")
    questions = [item for item in questions_for_recipe(recipe, topology.nodes) if item.node.name == "spark-b"]
    reports = gather_reports({"spark-b": remote}, tuple(questions), PARTS, lambda: 0.0)
    found = problems(case_of("pair", spark_b=reports["spark-b"]))
    (finding,) = [item for item in found if item.node == "spark-b"]
    assert finding.check == "node-answer"
    assert words in finding.evidence
    assert finding.level == "refuse"


def test_checks_without_facts_are_not_called_ok() -> None:
    silent = NodeReport(node="spark-b", problems={"all": "gone"})
    levels = {item.check: item.level for item in examine(case_of("pair", spark_b=silent))}
    assert {level for name, level in levels.items() if name in {item.id for item in CHECKS}} == {
        "not checked"
    }


@pytest.mark.parametrize(
    ("alter", "checks"),
    [
        (lambda tree: tree.remove("/proc/meminfo"), {"cma", "memory", "page-cache", "swap"}),
        (lambda tree: tree.remove(f"{HOME}/models/m"), {"checkpoint", "same-model"}),
        (lambda tree: tree.tool("ibv_devinfo", "", status=1), {"mtu"}),
        (
            lambda tree: tree.remove("/usr/bin/journalctl"),  # there is no dmesg either
            {"xid", "aer", "out-of-memory", "gpu-memory-log", "nic-firmware", "cable-log", "disk-log"},
        ),
        (
            lambda tree: tree.tool("nvidia-smi", "no", status=6),
            {"gpu-busy", "gpu-clock", "same-clocks", "throttle"},
        ),
    ],
    ids=["meminfo", "no checkpoint", "ibv_devinfo", "kernel log", "nvidia-smi"],
)
def test_what_could_not_be_read_is_not_called_ok(
    alter: Callable[[SparkTree], object], checks: set[str], tmp_path: Path
) -> None:
    well = {item.check for item in examine(case_of("pair")) if item.level == "ok"}
    assert checks <= well
    case = ill_case("pair", tmp_path, lambda tree: (alter(tree), None)[1])
    found = {item.check for item in examine(case) if item.level == "not checked" and item.node == "spark-b"}
    assert checks <= found
    assert checks.isdisjoint(item.check for item in examine(case) if item.level == "ok")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("garbage", [None, "text", [], 7, {}, {"problem": "it broke"}], ids=str)
def test_garbage_in_one_part_leaves_the_others(part: str, garbage: object, tmp_path: Path) -> None:
    tree = tree_of("pair", "spark-b", tmp_path)
    answer: dict[str, Any] = doctor(
        parts=list(PARTS),
        peers={},
        paths={"state": "~/s"},
        model_path=None,
        engine_python="/none",
        runtime="venv",
        image=None,
        environment={},
        home="/home/nvidia",
        root=str(tree.root),
    )
    report = read_report("spark-b", answer | {part: garbage}, PARTS, sent_unix=0, received_unix=0)
    assert set(report.problems) == {part}
    assert [name for name in PARTS if getattr(report, name) is None] == [part]


def test_no_tool_at_all_is_one_finding_a_tool(tmp_path: Path) -> None:
    case = ill_case("pair", tmp_path, lambda tree: tree.remove("/usr/bin"))
    found = [item for item in problems(case) if item.check == "probe-tool"]
    assert {item.evidence for item in found} == {
        f"{tool} is not installed" for tool in ("ip", "ibv_devinfo", "nvidia-smi", "df")
    }
    assert all(item.level == "warn" and item.node == "spark-b" and item.fix for item in found)


def test_without_ip_no_address_and_no_route_is_not_checked(tmp_path: Path) -> None:
    """What could not be read is not called missing."""
    found = examine(ill_case("pair", tmp_path, lambda tree: tree.remove("/usr/bin/ip")))
    wrong = [item for item in found if item.level in ("warn", "refuse")]
    assert [(item.check, item.evidence) for item in wrong] == [("probe-tool", "ip is not installed")]
    unseen = {item.check for item in found if item.level == "not checked" and "spark-b" in item.node}
    assert unseen >= {"environment", "route", "port-address", "twin-subnets", "neighbours"}


def test_a_tool_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.node.probe_root.TOOL_TIMEOUT_S", 1.5)
    case = ill_case(
        "pair", tmp_path, lambda tree: tree.program("/usr/bin/ibv_devinfo", "#!/bin/sh\nexec /bin/sleep 9\n")
    )
    (finding,) = problems(case)
    assert (finding.check, finding.evidence) == ("probe-tool", "ibv_devinfo did not answer within 1.5 s")


def test_tools_that_print_garbage_do_no_harm(tmp_path: Path) -> None:
    def alter(tree: Any) -> None:
        for name in (
            "ip",
            "ibv_devinfo",
            "nvidia-smi",
            "df",
            "journalctl",
            "dpkg-query",
            "timedatectl",
            "docker",
        ):
            tree.tool(name, '{"not": [what, \x01 was asked')

    found = problems(ill_case("pair", tmp_path, alter))
    assert {item.node for item in found} == {"spark-b"}
    assert {"gpu", "disk-answers", "port-address", "route"} <= {item.check for item in found}


def test_clock_skew_is_measured_against_ours() -> None:
    """S-clock-skew: the error of the measurement counts for the node."""
    report = healthy_reports("pair")["spark-b"]
    (finding,) = problems(case_of("pair", spark_b=with_clock(report, -31.0)))
    assert (finding.check, finding.level) == ("clock", "warn")
    assert "it is -31.0 s" in finding.evidence
    assert problems(case_of("pair", spark_b=with_clock(report, CLOCK_SKEW_S))) == []
    answer = {"started_unix": 105.0, "ended_unix": 106.0}
    read = read_report("n", answer, (), sent_unix=100.0, received_unix=101.2)
    assert read.clock_skew_s == pytest.approx(4.9)
    assert read.clock_error_s == pytest.approx(0.1)


def test_memory_below_the_weights_refuses(tmp_path: Path) -> None:
    report = report_of(tree_of("pair", "spark-b", tmp_path))
    assert report.storage is not None and report.storage.model is not None
    huge = report.storage.model.model_copy(update={"weight_bytes": 300 << 30})
    ill = replace(report, storage=report.storage.model_copy(update={"model": huge}))
    (finding,) = problems(case_of("pair", spark_b=ill))
    assert (finding.check, finding.level) == ("memory", "refuse")
    assert (
        "118.0 GiB of memory are available, this node's share of the weights alone is 150.0 GiB"
        in finding.evidence
    )


def test_ring_without_its_environment_is_refused() -> None:
    """F23: trees over links that are not there."""
    topology = topology_for("ring")
    nodes = tuple(node.model_copy(update={"environment": {}}) for node in topology.nodes)
    found = problems(case_of("ring", topology=topology.model_copy(update={"nodes": nodes})))
    assert {(item.check, item.level) for item in found} == {("layout", "refuse")}
    assert len(found) == 4
    assert "NCCL_IB_SUBNET_AWARE_ROUTING=1 NCCL_IB_MERGE_NICS=0 NCCL_ALGO=Ring" in found[0].evidence


def test_a_plan_is_made_although_a_node_is_wrong_or_silent() -> None:
    topology, recipe = topology_for("pair", fabric={"hcas": ["mlx5_9"]}), recipe_for("pair")
    good = all_facts(topology_for("pair"), recipe)
    facts = {name: Result(value=value) for name, value in good.items()}
    plan, known = plan_anyway(recipe, topology, facts, run_id="r1")
    assert plan.nodes[1].node.fabric.hcas == ("mlx5_9",)
    assert set(known) == {"spark-a", "spark-b"}
    facts["spark-b"] = Result(error=NodeFailed("gone", node="spark-b"))
    plan, known = plan_anyway(recipe, topology_for("pair"), facts, run_id="r1")
    assert [node.name for node in plan.nodes] == ["spark-a", "spark-b"]
    assert set(known) == {"spark-a"}


def test_known_bad_needs_every_pattern() -> None:
    (pair,) = [item for item in known_bad() if item.kernel and item.driver]
    assert pair.fits(kernel="6.17.0-1008-nvidia", driver="580.126.09", cmdline="")
    assert not pair.fits(kernel="6.17.0-1008-nvidia", driver="580.142", cmdline="")
    assert not pair.fits(kernel="6.17.0-1008-nvidia", driver=None, cmdline="")
    (kho,) = [item for item in known_bad() if item.kernel == "7.0.0-1019-nvidia*"]
    assert not kho.fits(kernel="7.0.0-1019-nvidia", driver=None, cmdline="quiet kho=off splash")
    assert all(source.startswith("https://") for item in known_bad() for source in item.sources)


def test_one_machine_is_not_compared_with_itself() -> None:
    from launcher.topology import local_topology

    assert parts_for("cpu", local_topology(3).nodes) == ("host", "storage")
    assert parts_for("venv", topology_for("pair").nodes) == ("host", "storage", "fabric", "software", "gpu")


def test_check_names_are_unique_and_those_of_up_are_known() -> None:
    names = [item.id for item in CHECKS]
    assert len(set(names)) == len(names)
    assert set(names).isdisjoint(LAUNCH_CHECKS)
    used = {
        name
        for name in Path(find_problems.__code__.co_filename).read_text().split('"')
        if name in LAUNCH_CHECKS
    }
    assert used == set(LAUNCH_CHECKS)


def docker_case(tmp_path: Path, alter: Any) -> Case:
    """The recipe runs in a container; both nodes are probed for its image."""
    image = "sglang@sha256:" + "0" * 64
    reports = {}
    for name in ("spark-a", "spark-b"):
        tree = tree_of("pair", name, tmp_path / name)
        tree.tool("docker", {"image inspect *": "sha256:" + "1" * 64, "ps *": ""})
        if name == "spark-b":
            alter(tree)
        reports[name] = report_of(tree, runtime="docker", image=image)
    recipe = recipe_for("pair", engine={"runtime": "docker", "image": image})
    return case_of("pair", recipe=recipe, spark_a=reports["spark-a"], spark_b=reports["spark-b"])


def test_no_right_to_use_docker_is_refused(tmp_path: Path) -> None:
    """S-docker: the user is not in the group."""
    text = "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock"
    (finding,) = problems(docker_case(tmp_path, lambda tree: tree.tool("docker", "", status=1, stderr=text)))
    assert (finding.check, finding.level, finding.node) == ("docker", "refuse", "spark-b")
    assert text in finding.evidence
    assert "usermod -aG docker" in finding.fix


def test_another_image_on_one_node_is_refused(tmp_path: Path) -> None:
    """F10: a moving tag."""
    other = {"image inspect *": "sha256:" + "2" * 64, "ps *": ""}
    (finding,) = problems(docker_case(tmp_path, lambda tree: tree.tool("docker", other)))
    assert (finding.check, finding.level) == ("same-image", "refuse")
    assert problems(docker_case(tmp_path / "well", lambda tree: None)) == []


@pytest.mark.parametrize("runtime", ["venv", "docker"])
def test_a_new_variable_reaches_the_engine(runtime: str) -> None:
    """F8: it was in the script's environment and never in the container's."""
    image = {"image": "sglang@sha256:" + "0" * 64} if runtime == "docker" else {}
    recipe = recipe_for("pair", engine={"runtime": runtime, **image}, environment={"NEW_FEATURE": "1"})
    for node in case_of("pair", recipe=recipe).plan.nodes:
        assert node.environment["NEW_FEATURE"] == "1"
        passed = [node.argv[i + 1] for i, word in enumerate(node.argv) if word == "--env"]
        assert ("NEW_FEATURE" in passed) == (runtime == "docker")
    said = describe_plan(case_of("pair", recipe=recipe).plan)
    assert said.count(f"not run one; there: docker pull {image.get('image')}") == (2 if image else 0)

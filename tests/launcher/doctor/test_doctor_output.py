"""What a person reads."""

from __future__ import annotations

from pathlib import Path

from launcher.cli.doctor import cabling_lines, collective_lines, environment_lines, finding_lines
from launcher.doctor.collective_result import from_lines
from launcher.doctor.examine import examine
from launcher.doctor.finding import Finding
from launcher.doctor.run_doctor import DoctorResult
from launcher.node.facts_host import host_facts
from launcher.node.probe_root import ProbeRoot
from tests.launcher.doctor.clusters import case_of, tree_of
from tests.launcher.doctor.test_cabling import RIGHT, hellos


def refusal(node: str, evidence: str) -> Finding:
    return Finding(
        level="refuse", check="mtu", node=node, evidence=evidence, consequence="it hangs", fix="netplan"
    )


def test_the_worst_comes_first_and_is_said_once() -> None:
    fine = Finding(level="ok", check="hca", node="all", evidence="every HCA exists")
    unseen = [
        Finding(level="not checked", check=name, node="c", evidence="no host facts")
        for name in ("cma", "swap")
    ]
    lines = finding_lines([fine, *unseen, refusal("a", "got 1500"), refusal("b", "got 1280")], ("mtu",))
    assert lines == [
        "refuse  mtu (skipped)",
        "        a: got 1500",
        "        b: got 1280",
        "        then: it hangs",
        "        fix:  netplan",
        "        see:  docs/checks/mtu.md",
        "not checked: cma, swap: c: no host facts",
        "ok      hca: every HCA exists",
    ]


def test_the_environment_is_printed_for_each_node() -> None:
    case = case_of("triangle", reach=hellos(*RIGHT))
    result = DoctorResult(case=case, findings=examine(case), collective=None)
    lines = environment_lines(result)
    assert len(lines) == 4
    assert all("GLOO_SOCKET_IFNAME=enP7s7" in line and "NCCL_IB_GID_INDEX=3" in line for line in lines[1:])
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["spark-a", "spark-b", "spark-c"]
    assert cabling_lines(result)[1] == "  spark-a p0 - spark-b p1"
    assert collective_lines(result) == []


def test_all_reduces_are_a_table() -> None:
    said = [
        {"probe": {"stage": "size", "size_bytes": 1 << 20, "median_s": 0.001, "best_s": 0.001, "wrong": 0}}
    ]
    ranks = from_lines({"a": 0, "b": 1}, {"a": said, "b": said}, {}, backend="gloo", limit_s=1, seconds=1)
    case = case_of("pair")
    lines = collective_lines(DoctorResult(case=case, findings=(), collective=ranks))
    assert lines[1].split() == ["1048576", "B", "1.000", "ms", "8.389", "Gb/s"]


def test_keys_on_other_command_lines_are_not_shown(tmp_path: Path) -> None:
    tree = tree_of("pair", "spark-b", tmp_path)
    tree.process(881, "python3", "python3 -m sglang.launch_server --api-key s3cret --hf-token=abc --tp 2", 9)
    (engine,) = host_facts(ProbeRoot(str(tmp_path)))["engines"]
    assert engine["title"] == "python3 -m sglang.launch_server --api-key *** --hf-token=*** --tp 2"

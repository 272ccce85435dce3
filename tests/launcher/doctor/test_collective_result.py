"""What figures and last words of the ranks mean."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from launcher.doctor.collective_result import CollectiveResult, collective_findings, from_lines
from launcher.doctor.engine_python import python_of
from launcher.doctor.finding import Finding
from launcher.doctor.gather_reports import questions_for_plan
from launcher.node.collective import collective
from tests.launcher.doctor.clusters import case_of, recipe_for

MIB = 1 << 20
IB = "NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.100.1<0>"


def size(size_bytes: int, seconds: float, wrong: int = 0) -> dict[str, Any]:
    return {
        "probe": {
            "stage": "size",
            "size_bytes": size_bytes,
            "median_s": seconds,
            "best_s": seconds,
            "wrong": wrong,
        }
    }


def stage(name: str) -> dict[str, Any]:
    return {"probe": {"stage": name}}


def end(
    status: int | None = 0,
    *,
    timed_out: bool = False,
    tail: tuple[str, ...] = (),
    transport: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {
        "end": {
            "status": status,
            "timed_out": timed_out,
            "seconds": 1.0,
            "tail": list(tail),
            "transport": list(transport),
        }
    }


def result(backend: str, **lines: list[dict[str, Any]]) -> CollectiveResult:
    nodes = {name: rank for rank, name in enumerate(lines)}
    return from_lines(nodes, lines, {}, backend=backend, limit_s=60, seconds=1)


def good(*sizes: dict[str, Any], transport: tuple[str, ...] = (IB,)) -> list[dict[str, Any]]:
    return [stage("imported"), stage("joined"), *sizes, stage("done"), end(transport=transport)]


def only(found: CollectiveResult) -> Finding:
    (finding,) = collective_findings(found)
    return finding


def test_a_good_pair_tells_its_bandwidth() -> None:
    ranks = good(size(4, 0.00006), size(256 * MIB, 0.0115))
    finding = only(result("nccl", a=ranks, b=ranks))
    assert finding.level == "ok"
    assert "186.7 Gb/s" in finding.evidence


@pytest.mark.parametrize(
    ("seconds", "level"),
    [(0.0115, "ok"), (0.030, "warn"), (0.0958, "refuse"), (0.165, "refuse")],
    ids=["healthy", "half", "re-plugged 2.8 GB/s", "wedged 13 Gb/s"],
)
def test_bandwidth_is_judged(seconds: float, level: str) -> None:
    """S-wedged, S-replug: every value of /sys is healthy, only the bandwidth tells."""
    ranks = good(size(4, 0.00006), size(256 * MIB, seconds))
    assert only(result("nccl", a=ranks, b=ranks)).level == level


def test_tcp_instead_of_rdma_is_refused() -> None:
    """S-tcp: no error anywhere, only slow."""
    tcp = good(
        size(4, 0.0001),
        size(256 * MIB, 0.012),
        transport=("NCCL INFO NET/Socket : Using [0]enp1s0f0np0", "NCCL INFO Using network Socket"),
    )
    finding = only(result("nccl", a=good(size(4, 0.0001), size(256 * MIB, 0.012)), b=tcp))
    assert (finding.level, finding.node) == ("refuse", "b")
    assert "TCP instead of RDMA" in finding.evidence


def test_the_rank_that_failed_first_is_named() -> None:
    """F37: the cause, not the ranks that lost their peer."""
    lost = [
        stage("imported"),
        stage("joined"),
        end(1, tail=("RuntimeError: Read error: Connection reset by peer",)),
    ]
    cause = [
        stage("imported"),
        end(1, tail=("NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",)),
    ]
    finding = only(result("nccl", a=lost, b=cause, c=lost))
    assert finding.node == "b"
    assert "ibv_reg_mr_iova2" in finding.evidence
    assert "a joined, b imported, c joined" in finding.evidence


def test_a_hang_of_the_first_all_reduce_is_a_time_out() -> None:
    """F26: 4 bytes never return."""
    hung = [stage("imported"), stage("joined"), end(-15, timed_out=True)]
    finding = only(result("nccl", a=hung, b=hung))
    assert "nothing moved for 60 s" in finding.evidence
    assert "nccl-conf" in finding.fix


def test_a_wrong_sum_is_refused() -> None:
    bad = good(size(4, 0.0001), size(MIB, 0.001, wrong=3))
    finding = only(result("gloo", a=good(size(4, 0.0001), size(MIB, 0.001)), b=bad))
    assert (finding.level, finding.node) == ("refuse", "b")
    assert "wrong sum" in finding.evidence


def test_an_engine_without_torch_is_named() -> None:
    missing = [end(1, tail=("ModuleNotFoundError: No module named 'torch'",))]
    waiting = [stage("imported"), end(-15, timed_out=True)]
    finding = only(result("gloo", a=waiting, b=missing))
    assert finding.node == "b"
    assert "No module named 'torch'" in finding.evidence
    assert "install" in finding.fix


def test_a_rank_that_does_not_get_through_its_import_is_named_with_the_cause() -> None:
    """Not the network: the others met nobody and were given up, or lost the one they met."""
    slow = [end(-15, timed_out=True)]
    waited = [stage("imported"), end(-15, timed_out=True)]
    lost = [stage("imported"), end(1, tail=("RuntimeError: Connection reset by peer",))]
    for others in (waited, lost):
        finding = only(result("gloo", a=others, b=slow, c=others))
        assert finding.node == "b"
        assert "torch was not loaded in 120 s (a imported, b not started, c imported)" in finding.evidence
        assert "iostat" in finding.fix


# A stand-in for the engine's Python that loads for 2 s, then says what a rank says.
LOADS = """echo import; sleep 2; echo '{"probe":{"stage":"imported"}}'; exec sleep "$0" """


@pytest.mark.parametrize(
    ("import_limit_s", "rest_s", "stages", "timed_out"),
    [(60.0, "0", ["imported"], False), (0.5, "0", [], True), (60.0, "60", ["imported"], True)],
    ids=["the import has its own limit", "which ends it", "then the other holds"],
)
def test_the_limit_begins_when_torch_is_loaded(
    capsys: pytest.CaptureFixture[str], import_limit_s: float, rest_s: str, stages: list[str], timed_out: bool
) -> None:
    reader, writer = os.pipe()  # the launcher's end, open
    stdin = os.dup(0)
    os.dup2(reader, 0)
    try:
        collective(
            argv=["sh", "-c", LOADS, rest_s], environment=dict(os.environ), settings={},
            import_limit_s=import_limit_s, limit_s=1.9,
        )  # fmt: skip
    finally:
        os.dup2(stdin, 0)
        for fd in (reader, writer, stdin):
            os.close(fd)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["probe"]["stage"] for line in said if "probe" in line] == stages
    assert said[-1]["end"]["timed_out"] == timed_out


def test_the_engines_own_python_is_used_also_in_a_container() -> None:
    venv = case_of("pair").plan.head
    assert python_of(venv) == ("/home/nvidia/.local/share/sparkctl/venv/bin/python",)
    recipe = recipe_for("pair", engine={"runtime": "docker", "image": "sglang@sha256:" + "0" * 64})
    plan = case_of("pair", recipe=recipe).plan
    assert {item.image for item in questions_for_plan(plan)} == {recipe.engine.image}
    container = python_of(plan.head)
    assert container[:2] == ("docker", "run")
    assert container[-2:] == ("sglang@sha256:" + "0" * 64, "python3")

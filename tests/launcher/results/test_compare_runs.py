"""`results compare` and the verdict of `results reproduce`, on runs whose speed is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.errors import ResultWrong, UsageError
from launcher.results.compare_runs import Comparison, compare_runs
from launcher.results.manifest import NodeDescription, Tolerance, Versions, resolve
from launcher.results.reproduce_run import ReproduceVerdict, judge, save_verdict
from launcher.results.verify_run import verify_run
from tests.launcher.results.make_run import make_request, make_requests, make_run


def compare(tmp_path: Path, first: dict[str, object], second: dict[str, object]) -> Comparison:
    runs = [
        verify_run(make_run(tmp_path / name, **{"run_id": name, **values}))  # type: ignore[arg-type]
        for name, values in (("a", first), ("b", second))
    ]
    return compare_runs(*runs)


def reproduce(tmp_path: Path, **second: object) -> ReproduceVerdict:
    runs = [
        verify_run(make_run(tmp_path / name, **{"run_id": name, **values}))  # type: ignore[arg-type]
        for name, values in (("a", {}), ("b", second))
    ]
    return judge(*runs)


def test_it_says_what_differed_before_who_is_faster(tmp_path: Path) -> None:
    found = compare(
        tmp_path,
        {},
        {
            "speed": 2.0,
            "versions": Versions(sparkctl="0.1.0", sglang="0.5.24"),
            "engine_args": {"tp_size": 3, "mem_fraction_static": 0.6},
            "nodes": (NodeDescription(node="node-0", kernel="6.9.0"), NodeDescription(node="node-1")),
        },
    )
    told = {item.key: (item.a, item.b) for item in found.differences}
    assert told == {
        "engine_args.mem_fraction_static": ("0.5", "0.6"),
        "nodes.node-0.kernel": ("6.8.0", "6.9.0"),
        "versions.sglang": ("0.5.23", "0.5.24"),
    }
    assert {item.faster for item in found.figures} == {"b"}
    for item in found.figures:
        assert item.b_over_a == pytest.approx(0.5 if item.figure == "ttft_round_s" else 2.0, abs=1e-3)


def test_ranges_that_meet_are_not_told_apart(tmp_path: Path) -> None:
    """Rounds at 1.01 and 1.02 against 1.015 and 1.025 times the speed."""
    found = compare(tmp_path, {}, {"speed": 1.005})
    assert {item.faster for item in found.figures} == {"not told apart"}


def test_one_round_is_no_spread(tmp_path: Path) -> None:
    once = [record for record in make_requests() if record.round < 2]
    found = compare(tmp_path, {}, {"requests": list(once), "speed": 9.0})
    assert {item.faster for item in found.figures} == set()
    assert all("other prompts" in line for line in found.left_out) and len(found.left_out) == 4


def test_two_revisions_of_a_protocol_are_never_compared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be of one protocol"):
        compare(tmp_path, {}, {"protocol_revision": "2"})


def test_two_protocols_are_never_compared(tmp_path: Path) -> None:
    other: dict[str, object] = {"protocol": "lil", "requests": [make_request(protocol="lil")], "samples": ()}
    with pytest.raises(UsageError, match="must be of one protocol"):
        compare(tmp_path, {}, other)


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = verify_run(make_run(tmp_path / "a"))
    with pytest.raises(UsageError, match="got bench-1 twice"):
        compare_runs(run, run)
    with pytest.raises(ResultWrong, match="got bench-1 twice"):
        judge(run, run)


def test_a_second_run_within_the_tolerance_reproduces(tmp_path: Path) -> None:
    verdict = reproduce(tmp_path, speed=1.08)
    assert verdict.verdict == "reproduced"
    assert {item.within for item in verdict.figures} == {True}
    kept = json.loads(save_verdict(verdict, tmp_path / "b").read_text())
    assert kept["verdict"] == "reproduced" and kept["first_seal"] == verdict.first_seal


@pytest.mark.parametrize("speed", [0.85, 1.12])
def test_a_run_out_of_the_tolerance_does_not_reproduce_also_when_it_is_faster(
    tmp_path: Path, speed: float
) -> None:
    verdict = reproduce(tmp_path, speed=speed)
    assert verdict.verdict == "not reproduced"
    wrong = {item.figure for item in verdict.figures if not item.within}
    assert wrong == {"aggregate_tokens_per_s", "request_tokens_per_s"}, "latency has 25 %"


def test_other_hardware_or_driver_is_told_and_judged_by_its_effect(tmp_path: Path) -> None:
    verdict = reproduce(tmp_path, nodes=(NodeDescription(node="node-0", kernel="6.9.0"),))
    assert verdict.verdict == "reproduced"
    assert "nodes.node-0.kernel" in {item.key for item in verdict.differences}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lock_sha256": "cd" * 32}, "lock_sha256"),
        ({"settings": {"suites": ["decode"], "concurrency": [1, 2], "rounds": 3}}, "settings.rounds"),
        ({"recipe": resolve("local-cpu", {"name": "local-cpu", "parallelism": {"tp": 2}})}, "recipe"),
        ({"served_model": "other"}, "served_model"),
    ],
)
def test_other_inputs_are_another_measurement(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(ResultWrong, match=said):
        reproduce(tmp_path, **change)


def test_more_failures_than_before_do_not_reproduce(tmp_path: Path) -> None:
    requests = make_requests()
    lost = requests[-1].model_copy(update={"error": "reset", "completion_tokens": None})
    verdict = reproduce(tmp_path, requests=[*requests[:-1], lost])
    assert verdict.verdict == "not reproduced"
    assert verdict.problems == ("decode code C2: 1 request(s) failed, 0 before",)


def test_wrong_answers_do_not_reproduce(tmp_path: Path) -> None:
    requests = make_requests()
    wrong = requests[-1].model_copy(update={"passed": False})
    verdict = reproduce(tmp_path, requests=[*requests[:-1], wrong])
    assert verdict.problems == ("decode code C2: 1 wrong answer(s), more than before",)


def test_the_tolerance_is_the_one_that_the_first_run_stated(tmp_path: Path) -> None:
    wide = Tolerance(throughput=0.5, latency=0.5)
    runs = [
        verify_run(make_run(tmp_path / name, run_id=name, speed=speed, tolerance=wide))
        for name, speed in (("a", 1.0), ("b", 1.4))
    ]
    assert judge(*runs).verdict == "reproduced"
    assert judge(*reversed(runs)).verdict == "reproduced"

"""The runs under results/: right to the last byte, without private names, and judged as their verdicts say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from launcher.results.reproduce_run import ReproduceVerdict, judge
from launcher.results.verify_run import verify_run

RESULTS = Path(__file__).parents[3] / "results"
RUNS = sorted(path.parent for path in RESULTS.glob("bench-*/manifest.json"))
VERDICTS = sorted(RESULTS.glob("*.verdict.json"))
PRIVATE = re.compile(
    rb"/(?:home|root|work|opt|tmp|mnt)/|[\w.-]+@[\w-]+\.[a-z]|(?:10|192\.168)(?:\.\d{1,3}){2,3}\b"
)


def test_a_cpu_cluster_and_two_repetitions_are_shipped() -> None:
    assert len(RUNS) >= 3 and len(VERDICTS) >= 2


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_shipped_run_is_right_and_names_nobody(run: Path) -> None:
    verify_run(run)
    for path in run.rglob("*.json*"):
        assert PRIVATE.search(path.read_bytes()) is None, path


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda path: path.name)
def test_a_shipped_verdict_follows_from_its_runs(verdict: Path) -> None:
    told = json.loads(verdict.read_bytes())
    name = verdict.name.removesuffix(".verdict.json")
    found = judge(verify_run(RESULTS / name.rpartition("-again-")[0]), verify_run(RESULTS / name))
    assert TypeAdapter(ReproduceVerdict).dump_python(found, mode="json") == told
    assert told["verdict"] == "reproduced"

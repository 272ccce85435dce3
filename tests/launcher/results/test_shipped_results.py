"""The runs under results/: right to the last byte, without private names, judged as their verdicts say."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from launcher.bench.describe_run import REVISIONS
from launcher.compose_recipe import load_recipe
from launcher.results.manifest import resolve
from launcher.results.reproduce_run import ReproduceVerdict, judge, same_recipe
from launcher.results.run_again import settings_of
from launcher.results.run_directory import LOCK
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
    for path in [*run.rglob("*.json*"), *run.glob("*.yaml"), *run.glob("report.*")]:
        assert PRIVATE.search(path.read_bytes()) is None, path


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_shipped_run_says_from_which_lock_and_on_what(run: Path) -> None:
    manifest = verify_run(run).manifest
    assert manifest.lock_sha256 == hashlib.sha256((run / LOCK).read_bytes()).hexdigest()
    assert all(node.cpu and node.num_cpus and node.architecture for node in manifest.nodes)
    assert manifest.protocol_revision == REVISIONS[manifest.protocol], "measured by an earlier revision"


def test_figures_of_others_stand_beside_a_run_of_their_protocol() -> None:
    run = verify_run(RESULTS / "bench-local-3x-sparkdash-2026-11-30")
    assert run.references and {row.protocol for row in run.references} == {"sparkdash"}
    report = (run.directory / "report.md").read_text()
    assert all(row.source in report for row in run.references)


def test_the_engine_read_engram_rows() -> None:
    cells = verify_run(RESULTS / "bench-local-v41-3x-2026-11-30").summary.cells
    assert all(cell.engram_hit_rate is not None for cell in cells)


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_shipped_run_can_be_run_again_by_this_version(run: Path) -> None:
    """Its settings are known, and the recipe of its name is still the one that it ran."""
    manifest = verify_run(run).manifest
    settings_of(manifest)
    assert manifest.recipe is not None
    recipe = load_recipe(manifest.recipe.name)[0]
    assert same_recipe(manifest.recipe, resolve(recipe.name, recipe.model_dump(mode="json")))
    slower = recipe.server.model_copy(update={"max_total_tokens": 4096})
    other = recipe.model_copy(update={"server": slower}).model_dump(mode="json")
    assert not same_recipe(manifest.recipe, resolve(recipe.name, other))


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda path: path.name)
def test_a_shipped_verdict_follows_from_its_runs(verdict: Path) -> None:
    told = json.loads(verdict.read_bytes())
    name = verdict.name.removesuffix(".verdict.json")
    found = judge(verify_run(RESULTS / name.rpartition("-again-")[0]), verify_run(RESULTS / name))
    assert TypeAdapter(ReproduceVerdict).dump_python(found, mode="json") == told
    assert told["verdict"] == "reproduced"

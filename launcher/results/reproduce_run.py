"""Did a second run reproduce the first one: the same inputs, and medians within the first one's tolerance?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from launcher.errors import ResultWrong
from launcher.recipe import Recipe
from launcher.results.compare_runs import (
    FigureComparison,
    ManifestDifference,
    compare_runs,
    manifest_differences,
)
from launcher.results.manifest import Manifest, Resolved
from launcher.results.verify_run import VerifiedRun
from launcher.write_file import write_file

# A second run must share these to be the same measurement at all; the rest is told, and judged by its effect.
SAME_INPUTS = (
    "protocol",
    "protocol_revision",
    "settings",
    "served_model",
    "recipe",
    "lock_sha256",
    "prompts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureVerdict:
    """`change` is (second - first) / first of the medians."""

    suite: str
    case: str
    concurrency: int
    figure: str
    first: float
    second: float
    change: float | None
    tolerance: float
    within: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceVerdict:
    """`reproduced` when every figure is within its tolerance and no request failed that did not before."""

    verdict: Literal["reproduced", "not reproduced"]
    first_seal: str
    second_seal: str
    differences: tuple[ManifestDifference, ...]
    figures: tuple[FigureVerdict, ...]
    problems: tuple[str, ...]


def input_differences(first: Manifest, second: Manifest) -> tuple[ManifestDifference, ...]:
    """What makes the second run another measurement."""
    names = set(SAME_INPUTS)
    if first.recipe is not None and second.recipe is not None and same_recipe(first.recipe, second.recipe):
        names.discard("recipe")
    return tuple(
        item for item in manifest_differences(first, second) if item.key.split(".")[0].split("[")[0] in names
    )


def same_recipe(first: Resolved, second: Resolved) -> bool:
    """The same values, read as this version reads them: a key that it has had since, with its default, is no
    difference. A recipe that it does not understand is only the same to the letter.
    """
    if first.sha256 == second.sha256:
        return True
    try:
        a, b = (Recipe.model_validate_json(json.dumps(item.content)) for item in (first, second))
    except ValidationError:
        return False
    return a == b


def judge(first: VerifiedRun, second: VerifiedRun) -> ReproduceVerdict:
    """Pure. Raises ResultWrong where the inputs differ: such a run proves nothing about the first."""
    if second.manifest.run_id == first.manifest.run_id:
        raise ResultWrong(f"the second run must be another one, got {first.manifest.run_id} twice")
    other = input_differences(first.manifest, second.manifest)
    if other:
        told = "; ".join(f"{item.key}: {item.a} -> {item.b}" for item in other[:5])
        raise ResultWrong(
            f"a second run must have the inputs of the first, got {len(other)} difference(s): {told}",
            hint="start the cluster from the same recipe and lock, then: sparkctl results reproduce DIR",
        )
    comparison = compare_runs(first, second)
    figures = tuple(_judge_figure(figure, first.manifest) for figure in comparison.figures)
    problems = [*comparison.left_out, *_failures(first, second)]
    if not figures:
        problems.append("no case has a figure in both runs")
    return ReproduceVerdict(
        verdict="reproduced" if not problems and all(item.within for item in figures) else "not reproduced",
        first_seal=first.manifest.seal,
        second_seal=second.manifest.seal,
        differences=comparison.differences,
        figures=figures,
        problems=tuple(problems),
    )


def _judge_figure(figure: FigureComparison, first: Manifest) -> FigureVerdict:
    # A prefill rate is the TTFT in another unit, so it has its tolerance.
    decodes = figure.figure in ("aggregate_tokens_per_s", "request_tokens_per_s")
    tolerance = first.tolerance.throughput if decodes else first.tolerance.latency
    change = None if figure.b_over_a is None else round(figure.b_over_a - 1, 4)
    return FigureVerdict(
        suite=figure.suite,
        case=figure.case,
        concurrency=figure.concurrency,
        figure=figure.figure,
        first=figure.a.median,
        second=figure.b.median,
        change=change,
        tolerance=tolerance,
        within=change is not None and abs(change) <= tolerance,
    )


def _failures(first: VerifiedRun, second: VerifiedRun) -> list[str]:
    problems = []
    for cell in second.summary.cells:
        before = first.summary.cell(cell.key)
        name = f"{cell.suite} {cell.case} C{cell.concurrency}"
        if before is not None and cell.failed > before.failed:
            problems.append(f"{name}: {cell.failed} request(s) failed, {before.failed} before")
        if before is not None and cell.checked - cell.passed > before.checked - before.passed:
            problems.append(f"{name}: {cell.checked - cell.passed} wrong answer(s), more than before")
    return problems


def save_verdict(verdict: ReproduceVerdict, second: Path) -> Path:
    """Beside the second run, whose own directory is sealed. Raises UsageError."""
    path = second.with_name(f"{second.name}.verdict.json")
    content = TypeAdapter(ReproduceVerdict).dump_python(verdict, mode="json")
    write_file(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
    return path

"""Two runs side by side: first what differs in their manifests, then who is faster, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.errors import UsageError
from launcher.results.manifest import Manifest
from launcher.results.summary import CellSummary, Spread
from launcher.results.verify_run import VerifiedRun

# What differs between any two runs and explains nothing.
_ALWAYS_DIFFERENT = frozenset(
    ("run_id", "started_at", "ended_at", "files", "seal", "scrubbed", "published_from", "command")
)
# Larger is better for the first kind, smaller for the second.
RATES = ("aggregate_tokens_per_s", "request_tokens_per_s", "prefill_tokens_per_s")
TIMES = ("ttft_round_s",)
Verdict = Literal["a", "b", "not told apart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestDifference:
    """A key of the manifest that the runs do not share; None where a run lacks it."""

    key: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureComparison:
    """One figure of one case. `faster` needs ranges over the rounds that do not meet, and two rounds each."""

    suite: str
    case: str
    concurrency: int
    figure: str
    a: Spread
    b: Spread
    b_over_a: float | None
    faster: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`left_out`: cases that only one run has, or that were sent other prompts, each with the reason."""

    differences: tuple[ManifestDifference, ...]
    figures: tuple[FigureComparison, ...]
    left_out: tuple[str, ...]


def compare_runs(a: VerifiedRun, b: VerifiedRun) -> Comparison:
    """Pure. Raises UsageError for runs of two protocols: their figures do not mean the same."""
    protocols = [(run.manifest.protocol, run.manifest.protocol_revision) for run in (a, b)]
    if protocols[0] != protocols[1]:
        told = [f"{name} (revision {revision})" for name, revision in protocols]
        raise UsageError(
            f"two runs must be of one protocol to be compared, got {told[0]} and {told[1]}",
            hint=f"run the same: sparkctl bench --protocol {protocols[0][0]}",
        )
    if a.manifest.run_id == b.manifest.run_id:
        raise UsageError(
            f"two runs must be named, got {a.manifest.run_id} twice", hint="sparkctl results list"
        )
    figures: list[FigureComparison] = []
    left_out: list[str] = []
    for key in sorted({cell.key for run in (a, b) for cell in run.summary.cells}):
        name = f"{key[1]} {key[2]} C{key[3]}"
        ours, theirs = a.summary.cell(key), b.summary.cell(key)
        if ours is None or theirs is None:
            left_out.append(f"{name}: only in {'B' if ours is None else 'A'}")
        elif _prompts(a, key) != _prompts(b, key):
            left_out.append(f"{name}: the runs sent other prompts")
        else:
            figures += _compare_cell(ours, theirs)
    return Comparison(
        differences=manifest_differences(a.manifest, b.manifest),
        figures=tuple(figures),
        left_out=tuple(left_out),
    )


def manifest_differences(a: Manifest, b: Manifest) -> tuple[ManifestDifference, ...]:
    ours, theirs = _flat(a), _flat(b)
    return tuple(
        ManifestDifference(key=key, a=ours.get(key), b=theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    )


def _flat(manifest: Manifest) -> dict[str, str]:
    content = manifest.model_dump(mode="json", exclude=set(_ALWAYS_DIFFERENT))
    prompts = {f"{item['suite']} {item['case']}": item["sha256"] for item in content.pop("prompts")}
    nodes = {item.pop("node"): item for item in content.pop("nodes")}
    found: dict[str, str] = {}
    _flatten("", {**content, "nodes": nodes}, found)
    for case, hashes in prompts.items():
        found[f"prompts[{case}]"] = f"{len(hashes)} prompts, first {hashes[0][:12] if hashes else 'none'}"
    return found


def _flatten(prefix: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            _flatten(f"{prefix}.{key}" if prefix else str(key), inner, into)
    elif value is not None:
        into[prefix] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _prompts(run: VerifiedRun, key: tuple[str, str, str, int]) -> list[str]:
    """What was sent in a case and counted, in any order."""
    return sorted(
        record.prompt_sha256
        for record in run.records.requests
        if (record.protocol, record.suite, record.case, record.concurrency) == key and not record.warm_up
    )


def _compare_cell(a: CellSummary, b: CellSummary) -> list[FigureComparison]:
    found = []
    for figure in (*RATES, *TIMES):
        ours, theirs = getattr(a, figure), getattr(b, figure)
        if ours is not None and theirs is not None:
            found.append(
                FigureComparison(
                    suite=a.suite,
                    case=a.case,
                    concurrency=a.concurrency,
                    figure=figure,
                    a=ours,
                    b=theirs,
                    b_over_a=ratio(theirs.median, ours.median),
                    faster=_faster(ours, theirs, larger_is_better=figure in RATES),
                )
            )
    return found


def _faster(a: Spread, b: Spread, *, larger_is_better: bool) -> Verdict:
    if min(a.rounds, b.rounds) < 2 or (a.min <= b.max and b.min <= a.max):
        return "not told apart"
    return "b" if (b.min > a.max) == larger_is_better else "a"


def ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None

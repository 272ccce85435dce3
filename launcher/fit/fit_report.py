"""A fit in words and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import PreflightRefused
from launcher.fit.constants import GB, GIB
from launcher.fit.fit_recipe import Fit
from launcher.fit.memory_budget import RankBudget

# Sparks that a recipe is tried on.
CLUSTER_SIZES = (2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One recipe tried on every cluster size; `own_nodes` is the size it is written for."""

    recipe: str
    own_nodes: int
    fits: Mapping[int, Fit]


def budget_rows(fit: Fit) -> list[tuple[str, str, str, str]]:
    """Item, bytes on the head, bytes on each worker, formula or source. Workers hold the same."""
    head, worker = fit.budgets[0], fit.budgets[-1]
    on_worker = {item.name: item.num_bytes for item in worker.items}
    rows = [
        (item.name, f"{item.num_bytes:,}", f"{on_worker.get(item.name, 0):,}", item.how)
        for item in head.items
    ]
    for name, value in (
        ("at start", "start_bytes"),
        ("idle while serving", "idle_bytes"),
        ("left", "left_bytes"),
    ):
        rows.append((f"= {name}", f"{getattr(head, value):,}", f"{getattr(worker, value):,}", _SUMS[value]))
    return rows


_SUMS = {
    "start_bytes": "held when the engine is ready",
    "idle_bytes": "usable - start - growth",
    "left_bytes": "idle - prefill transient",
}


def verdict_lines(fit: Fit) -> list[str]:
    """What a person wants to know after the table."""
    settings = fit.settings
    split = settings.split
    chunk = fit.safe_chunk_tokens
    return [
        f"{fit.recipe} on {split.tp} Sparks (tp {split.tp}, ep {split.ep}): "
        + ("fits" if fit.fits else "does not fit"),
        f"usable memory     {settings.usable_bytes:,} B ({settings.usable_bytes / GIB:.1f} GiB) a Spark",
        f"KV pool           {fit.kv_tokens:,} tokens at {fit.bytes_per_token:.2f} B on every rank; "
        f"up to {fit.safe_pool_tokens:,} would be safe",
        f"chunk             {settings.pool.chunk_tokens}; largest safe one for {settings.context_tokens:,} "
        "tokens: " + (str(chunk) if chunk else "none"),
        f"mem-fraction      {settings.mem_fraction if settings.mem_fraction is not None else 'not set'}; "
        f"weights need {fit.min_mem_fraction:.3f}",
    ]


def problem_lines(fit: Fit) -> list[str]:
    lines = []
    for problem in fit.problems:
        lines += [f"{problem.level} [{problem.check}] {problem.message}", f"  -> {problem.hint}"]
    return lines


def matrix_rows(rows: Sequence[MatrixRow]) -> list[tuple[str, ...]]:
    return [(row.recipe, *(_cell(row, size) for size in CLUSTER_SIZES)) for row in rows]


def _cell(row: MatrixRow, size: int) -> str:
    fit = row.fits[size]
    own = " *" if size == row.own_nodes else ""
    if not fit.fits:
        return f"no: {', '.join(dict.fromkeys(problem.check for problem in fit.refusals))}{own}"
    return f"fits: {fit.kv_tokens:,} tokens, chunk up to {fit.safe_chunk_tokens}{own}"


def fit_document(fit: Fit, names: Sequence[str] = ()) -> dict[str, object]:
    """Everything as data; `names` are the nodes in rank order, where a topology gives them."""
    settings = fit.settings
    split = settings.split
    return {
        "recipe": fit.recipe,
        "shape": fit.shape.origin,
        "fits": fit.fits,
        "sparks": split.tp,
        "split": {
            "tp": split.tp,
            "ep": split.ep,
            "head_groups": split.head_groups,
            "expert_width": split.expert_width,
            "draft_experts": split.draft_experts,
        },
        "context_tokens": settings.context_tokens,
        "chunk_tokens": settings.pool.chunk_tokens,
        "kv_tokens": fit.kv_tokens,
        "kv_bytes_per_token": fit.bytes_per_token,
        "safe_pool_tokens": fit.safe_pool_tokens,
        "safe_chunk_tokens": fit.safe_chunk_tokens,
        "min_mem_fraction": round(fit.min_mem_fraction, 4),
        "problems": [
            {"level": item.level, "check": item.check, "message": item.message, "hint": item.hint}
            for item in fit.problems
        ],
        "ranks": [_rank_document(budget, names) for budget in fit.budgets],
    }


def _rank_document(budget: RankBudget, names: Sequence[str]) -> dict[str, object]:
    return {
        "rank": budget.rank,
        "node": names[budget.rank] if budget.rank < len(names) else None,
        "usable_bytes": budget.usable_bytes,
        "start_bytes": budget.start_bytes,
        "idle_bytes": budget.idle_bytes,
        "left_bytes": budget.left_bytes,
        "items": [
            {"name": item.name, "bytes": item.num_bytes, "how": item.how, "source": item.source}
            for item in budget.items
        ],
    }


def refusal(fit: Fit) -> PreflightRefused:
    """The error of a recipe that does not fit: every refusal by name."""
    listed = "\n".join(f"[{problem.check}] {problem.message}" for problem in fit.refusals)
    left = fit.budgets[0].left_bytes / GB
    error = PreflightRefused(
        f"{fit.recipe} does not fit {fit.settings.split.tp} Sparks (head would end at {left:.1f} "
        f"GB):\n{listed}",
        hint=fit.refusals[0].hint,
    )
    error.detail = {"checks": [problem.check for problem in fit.refusals]}
    return error

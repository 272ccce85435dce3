"""The model's results as tables: for the terminal, for docs/performance-model.md, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from launcher.performance.changes import Worth, worth_of_changes
from launcher.performance.constants import FITTED_NAMES, fitted, read_data
from launcher.performance.published import BAR, Compared, compare_all
from launcher.performance.recipe_speed import RecipeSpeed

Table = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]


def published_table() -> Table:
    head = ("row", "published", "predicted", "error", "role", "source")
    rows = [
        (
            item.what,
            f"{item.published:,} {item.unit}",
            f"{item.predicted:,.1f}",
            f"{item.error:+.1%}" + _missed(item),
            item.role.replace("_", " "),
            item.source,
        )
        for item in compare_all()
        if item.predicted is not None and item.error is not None
    ]
    return head, rows


def _missed(item: Compared) -> str:
    if item.is_within_bar:
        return ""
    return f" (missed; {item.note})" if item.note else " (missed)"


def not_predicted_table() -> Table:
    head = ("row", "published", "why it is not predicted", "source")
    rows = [
        (item.what, f"{item.published} {item.unit}", item.reason, item.source)
        for item in compare_all()
        if item.predicted is None
    ]
    return head, rows


def changes_table() -> Table:
    head = ("change", "Sparks", "case", "without", "with", "speed", "evidence")
    rows = [
        (
            item.change,
            str(item.sparks),
            item.case,
            f"{item.without:,.1f} {item.unit}",
            f"{item.with_change:,.1f}",
            f"{item.gain:+.1%}",
            "not run",
        )
        for item in worth_of_changes()
    ]
    return head, rows


def parameters_table() -> Table:
    values = asdict(fitted())
    return ("parameter", "fitted value"), [(name, f"{values[name]:g}") for name in FITTED_NAMES]


def summary_lines() -> list[str]:
    """How many rows landed, fitted and held out apart, by kind and number of Sparks."""
    compared = compare_all()
    lines = []
    for role in ("held_out", "fit"):
        own = [item for item in compared if item.role == role]
        inside = sum(item.is_within_bar for item in own)
        lines.append(f"{role.replace('_', ' ')}: {inside} of {len(own)} rows within {BAR:.0%}")
        consistent = [item for item in own if not item.note]
        if len(consistent) < len(own):
            inside = sum(item.is_within_bar for item in consistent)
            lines.append(f"of them without series that contradict themselves: {inside} of {len(consistent)}")
    lines.append(
        f"not predicted: {sum(item.role == 'not_predicted' for item in compared)} rows, each with its reason"
    )
    return lines


def recipe_table(speed: RecipeSpeed) -> Table:
    head = ("case", "predicted", "of that")
    rows = [
        (
            f"{item.text}, {item.streams} stream(s)",
            f"{item.step.total_ms:.1f} ms per step, {item.tokens_per_s:.1f} tok/s",
            ", ".join(f"{name} {value:.1f}" for name, value in item.step.items().items() if value >= 0.05),
        )
        for item in speed.decode
    ]
    rows += [
        (
            f"cold prompt of {item.tokens:,}",
            f"{item.tokens_per_s:,.0f} tok/s, {item.time.total_s:.1f} s",
            ", ".join(f"{name} {value:.2f}" for name, value in item.time.items().items() if value >= 0.005),
        )
        for item in speed.prompts
    ]
    return head, rows


def waiting_line(speed: RecipeSpeed) -> str:
    if speed.short_wait_s is None:
        return (
            f"a short request behind a long cold prompt waits for all of it: {speed.long_wait_s:.0f} s "
            "for the longest here up to 93,000 tokens"
        )
    return (
        "a short request behind a cold prompt of 93,000 tokens: first token after about "
        f"{speed.short_wait_s:.1f} s"
    )


def published_document() -> dict[str, object]:
    return {
        "bar": BAR,
        "fitted": {"rows": read_data("fitted.json")["rows"], "parameters": asdict(fitted())},
        "rows": [_row_document(item) for item in compare_all()],
    }


def _row_document(item: Compared) -> dict[str, object]:
    error = item.error
    return asdict(item) | {
        "predicted": None if item.predicted is None else round(item.predicted, 3),
        "error": None if error is None else round(error, 4),
    }


def changes_document(rows: Sequence[Worth] | None = None) -> list[dict[str, object]]:
    return [
        asdict(item)
        | {
            "without": round(item.without, 3),
            "with_change": round(item.with_change, 3),
            "gain": round(item.gain, 4),
            "evidence": "not run",
        }
        for item in (rows or worth_of_changes())
    ]


def recipe_document(speed: RecipeSpeed) -> dict[str, object]:
    return {
        "recipe": speed.recipe,
        "evidence": "not run",
        "groups": speed.groups,
        "stack": asdict(speed.stack),
        "decode": [
            {
                "text": item.text,
                "streams": item.streams,
                "tokens_per_step": item.tokens_per_step,
                "step_ms": {name: round(value, 3) for name, value in item.step.items().items()},
                "total_ms": round(item.step.total_ms, 3),
                "tokens_per_s": round(item.tokens_per_s, 2),
            }
            for item in speed.decode
        ],
        "prompts": [
            {
                "tokens": item.tokens,
                "seconds": {name: round(value, 4) for name, value in item.time.items().items()},
                "total_s": round(item.time.total_s, 3),
                "tokens_per_s": round(item.tokens_per_s, 1),
            }
            for item in speed.prompts
        ],
        "short_wait_s": None if speed.short_wait_s is None else round(speed.short_wait_s, 2),
        "long_wait_s": round(speed.long_wait_s, 1),
    }


def as_markdown(table: Table) -> str:
    head, rows = table
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

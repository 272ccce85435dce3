"""The model's results as tables: for the terminal, for docs/performance-model.md, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from launcher.performance.changes import worth_of_changes
from launcher.performance.constants import FITTED_NAMES, fitted, read_data
from launcher.performance.engram_wait import engram_waits
from launcher.performance.expert_formats import worth_of_formats
from launcher.performance.published import BAR, Compared, compare_all, published_rows
from launcher.performance.recipe_speed import RecipeSpeed
from launcher.performance.sharing import sharing_of_series

Table = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]
NOT_RUN = "estimate, not run"


def published_table() -> Table:
    head = ("row", "published", "predicted", "error", "found without it", "role", "source")
    rows = [
        (
            item.what,
            f"{item.published:,} {item.unit}",
            _figure(item.predicted),
            f"{item.error:+.1%}" + ("" if item.is_within_bar else " (missed)"),
            "" if item.left_out_error is None else f"{item.left_out_error:+.1%}",
            item.role.replace("_", " "),
            item.source,
        )
        for item in compare_all()
        if item.predicted is not None and item.error is not None
    ]
    return head, rows


def _figure(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def missed_table() -> Table:
    head = ("row", "error", "why, as far as that can be told")
    rows = [
        (item.what, f"{item.error:+.1%}", item.missed)
        for item in compare_all()
        if item.error is not None and not item.is_within_bar
    ]
    return head, rows


def not_predicted_table() -> Table:
    head = ("row", "published", "why it is not predicted", "source")
    rows = [
        (item.what, f"{item.published} {item.unit}", item.reason, item.source)
        for item in compare_all()
        if item.predicted is None
    ]
    return head, rows


def sharing_table() -> Table:
    head = ("series", "streams", "published gain", "different texts", "one prompt", "equal replies")
    rows = [
        (
            item.what,
            f"{item.streams[0]} to {item.streams[1]}",
            f"{item.published:.2f}",
            f"{item.different:.2f}",
            f"{item.one_prompt:.2f}",
            f"{item.alike:.2f}",
        )
        for item in sharing_of_series()
    ]
    return head, rows


def changes_table() -> Table:
    head = ("change", "Sparks", "case", "without", "with", "gain", "from", "evidence")
    rows = [
        (
            item.change,
            str(item.sparks),
            item.case,
            f"{item.without:,.1f} {item.unit}",
            f"{item.with_change:,.1f}",
            f"{item.gain:+.1%}",
            ", ".join(f"{name} {value:+.2f}" for name, value in item.terms.items()),
            NOT_RUN,
        )
        for item in worth_of_changes()
    ]
    return head, rows


def formats_table() -> Table:
    head = ("experts", "bits", "Sparks", "weights of a rank", "fit", "step, prose, 1 stream", "evidence")
    rows = [
        (
            item.format,
            f"{item.bits:.2f}",
            str(item.sparks),
            f"{item.weights_gib:.1f} GiB",
            "yes" if item.fits else "no",
            "" if item.step_ms is None else f"{item.step_ms:.1f} ms",
            NOT_RUN,
        )
        for item in worth_of_formats()
    ]
    return head, rows


def engram_table() -> Table:
    head = (
        "Sparks",
        "streams",
        "layer",
        "step",
        "reads of a node",
        "read by",
        "slack",
        "exposed",
        "evidence",
    )
    rows = [
        (
            str(item.sparks),
            str(item.streams),
            str(item.layer),
            f"{item.step_ms:.1f} ms",
            f"{item.reads:.0f}",
            f"{item.read_ms:.2f} ms",
            f"{item.slack_ms:.2f} ms",
            f"{item.exposed_ms:.2f} ms",
            NOT_RUN,
        )
        for item in engram_waits()
    ]
    return head, rows


def parameters_table() -> Table:
    values = asdict(fitted())
    return ("parameter", "fitted value"), [(name, f"{values[name]:g}") for name in FITTED_NAMES]


def summary_lines() -> list[str]:
    """Rows that landed: held out, fitted, and fitted ones by parameters that were found without them."""
    compared = compare_all()
    lines = []
    for role in ("held_out", "fit"):
        own = [item for item in compared if item.role == role]
        inside = sum(item.is_within_bar for item in own)
        lines.append(f"{role.replace('_', ' ')}: {inside} of {len(own)} rows within {BAR:.0%}")
    alone = [item.left_out_error for item in compared if item.left_out_error is not None]
    inside = sum(abs(error) <= BAR for error in alone)
    lines.append(f"fit, each by parameters found without it: {inside} of {len(alone)}")
    for stack, errors in without_stack().items():
        inside = sum(abs(error) <= BAR for error in errors)
        lines.append(f"fit, without any row of build {stack}: {inside} of {len(errors)}")
    lines.append(
        f"not predicted: {sum(item.role == 'not_predicted' for item in compared)} rows, each with its reason"
    )
    return lines


def without_stack() -> dict[str, list[float]]:
    """Build -> errors of its fitted rows by parameters that were found without any of them."""
    rows = {row["id"]: row for row in published_rows()}
    found = read_data("fitted.json")["without_stack"]
    assert isinstance(found, dict)
    return {
        stack: [value / rows[row_id]["published"] - 1 for row_id, value in own.items()]
        for stack, own in found.items()
    }


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
    found = read_data("fitted.json")
    return {
        "bar": BAR,
        "fitted": {name: found[name] for name in ("rows", "parameters", "left_out", "without_stack")},
        "rows": [_row_document(item) for item in compare_all()],
        "sharing": [_rounded(asdict(item)) for item in sharing_of_series()],
    }


def _row_document(item: Compared) -> dict[str, object]:
    errors = {"error": item.error, "left_out_error": item.left_out_error}
    return asdict(item) | {
        "predicted": None if item.predicted is None else round(item.predicted, 3),
        **{name: None if value is None else round(value, 4) for name, value in errors.items()},
    }


def changes_document() -> dict[str, object]:
    """What changes, other expert formats and Engram's reads should be worth or cost; none of it was run."""
    return {
        "evidence": NOT_RUN,
        "changes": [_rounded(asdict(item) | {"gain": item.gain}) for item in worth_of_changes()],
        "expert_formats": [_rounded(asdict(item)) for item in worth_of_formats()],
        "engram": [_rounded(asdict(item) | {"exposed_ms": item.exposed_ms}) for item in engram_waits()],
    }


def _rounded(document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value)
        if isinstance(value, dict)
        else round(value, 4)
        if isinstance(value, float)
        else value
        for name, value in document.items()
    }


def recipe_document(speed: RecipeSpeed) -> dict[str, object]:
    return {
        "recipe": speed.recipe,
        "evidence": NOT_RUN,
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

"""Published rows and what the model says to each:
predicted with an error, or listed with the reason why not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from launcher.fit.model_shape import shipped_shape
from launcher.performance.constants import Fitted, fitted, read_data
from launcher.performance.decode_step import decode_step
from launcher.performance.prefill import prefill
from launcher.performance.stack import Stack

BAR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`role`: fit (a parameter was fitted on it), held_out, or not_predicted (then `reason`)."""

    id: str
    what: str
    unit: str
    published: float | str
    source: str
    role: str
    predicted: float | None = None
    reason: str = ""
    note: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over published, minus one."""
        if self.predicted is None or isinstance(self.published, str):
            return None
        return self.predicted / self.published - 1

    @property
    def is_within_bar(self) -> bool:
        return self.error is not None and abs(self.error) <= BAR


@cache
def _document() -> dict[str, Any]:
    return dict(read_data("published.json"))


def published_rows() -> list[dict[str, Any]]:
    return list(_document()["rows"])


def stack_of(row: dict[str, Any]) -> Stack:
    changes = dict(row.get("stack_changes", {}))
    if row.get("one_prompt"):
        changes["one_prompt"] = True
    return Stack(**{**_document()["stacks"][row["stack"]], **changes})


def compare_all(known: Fitted | None = None) -> tuple[Compared, ...]:
    """Every row of the data file, in its order."""
    return tuple(compare(row, known or fitted()) for row in published_rows())


def compare(row: dict[str, Any], known: Fitted) -> Compared:
    common = {name: row[name] for name in ("id", "what", "unit", "published", "source", "role")}
    if row["kind"] == "not_predicted":
        return Compared(**common, reason=row["reason"])
    series = row["id"].rpartition("-c")[0]
    note = "its series contradicts itself" if row["kind"] == "scaling" and _contradicts_itself(series) else ""
    return Compared(**common, predicted=predict(row, known), note=note)


def _contradicts_itself(series: str) -> bool:
    """True when doubling the streams later multiplies the speed by over a tenth more than it did before: with
    one prompt and one acceptance the gain of a doubling can only fall."""
    own = [
        row
        for row in published_rows()
        if row["kind"] == "scaling" and row["id"].rpartition("-c")[0] == series
    ]
    points = [(1, own[0]["one_stream"]), *((row["streams"], row["published"]) for row in own)]
    gains = [
        (later[1] / earlier[1]) ** (1 / math.log2(later[0] / earlier[0]))
        for earlier, later in pairwise(points)
    ]
    return any(after > 1.1 * before for before, after in pairwise(gains))


def predict(row: dict[str, Any], known: Fitted) -> float:
    shape, stack = shipped_shape("v41-flash"), stack_of(row)
    if row["kind"] == "prefill":
        return float(
            row["prompt_tokens"] / prefill(shape, stack, known, prompt_tokens=row["prompt_tokens"]).total_s
        )
    tokens, streams = float(row["tokens_per_step"]), int(row["streams"])

    def step_ms(count: int) -> float:
        return decode_step(
            shape,
            stack,
            known,
            streams=count,
            tokens_per_step=tokens,
            planned_rows=row.get("planned_rows"),
        ).total_ms

    if row["kind"] == "collectives":
        step = decode_step(shape, stack, known, streams=streams, tokens_per_step=tokens)
        return step.collectives_ms + step.expert_wait_ms
    if row["kind"] == "scaling":
        groups = int(row.get("groups", 1))
        return float(row["one_stream"] * streams * step_ms(1) / step_ms(-(-streams // groups)))
    step_time = step_ms(streams)
    return step_time if row["kind"] == "step" else 1000 * tokens * streams / step_time

"""Published rows and what the model says to each:
predicted with an error, or listed with the reason why not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.performance.acceptance import tokens_with_block
from launcher.performance.constants import Fitted, fitted, read_data
from launcher.performance.decode_step import StepTime, decode_step, verify_rows
from launcher.performance.prefill import prefill
from launcher.performance.rank_work import head_s, rank_work
from launcher.performance.stack import Stack

BAR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`role`: fit (a parameter was fitted on it), held_out, or not_predicted (then `reason`). `left_out`, of
    a fitted row: what parameters predict that were found without it. `missed`: why a row lies outside the
    bar, as far as that can be told."""

    id: str
    what: str
    unit: str
    published: float | str
    source: str
    role: str
    predicted: float | None = None
    left_out: float | None = None
    reason: str = ""
    missed: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over published, minus one."""
        if self.predicted is None or isinstance(self.published, str):
            return None
        return self.predicted / self.published - 1

    @property
    def left_out_error(self) -> float | None:
        if self.left_out is None or isinstance(self.published, str):
            return None
        return self.left_out / self.published - 1

    @property
    def is_within_bar(self) -> bool:
        return self.error is not None and abs(self.error) <= BAR


@cache
def _document() -> dict[str, Any]:
    return dict(read_data("published.json"))


def published_rows() -> list[dict[str, Any]]:
    return list(_document()["rows"])


@cache
def _stack(name: str, changes: tuple[tuple[str, Any], ...]) -> Stack:
    return Stack(**{**_document()["stacks"][name], **dict(changes)})


def stack_of(row: dict[str, Any]) -> Stack:
    changes = dict(row.get("stack_changes", {}))
    if row.get("one_prompt"):
        changes["texts"] = "one_prompt"
    return _stack(row["stack"], tuple(changes.items()))


def compare_all() -> tuple[Compared, ...]:
    """Every row of the data file, in its order."""
    left_out = dict(read_data("fitted.json")["left_out"])  # type: ignore[call-overload]
    return tuple(compare(row, fitted(), left_out.get(row["id"])) for row in published_rows())


def compare(row: dict[str, Any], known: Fitted, left_out: float | None = None) -> Compared:
    common = {name: row[name] for name in ("id", "what", "unit", "published", "source", "role")}
    if row["kind"] == "not_predicted":
        return Compared(**common, reason=row["reason"])
    return Compared(**common, predicted=predict(row, known), left_out=left_out, missed=row.get("missed", ""))


def predict(row: dict[str, Any], known: Fitted) -> float:
    return _KINDS[row["kind"]](row, known, shipped_shape("v41-flash"))


def _step(
    row: dict[str, Any],
    known: Fitted,
    shape: ModelShape,
    stack: Stack | None = None,
    streams: int | None = None,
) -> StepTime:
    return decode_step(
        shape,
        stack or stack_of(row),
        known,
        streams=streams or int(row["streams"]),
        tokens_per_step=float(row["tokens_per_step"]),
        planned_rows=row.get("planned_rows"),
    )


def _step_ms(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    return _step(row, known, shape).total_ms


def _rate(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    return float(1000 * row["tokens_per_step"] * row["streams"] / _step(row, known, shape).total_ms)


def _collectives_ms(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    step = _step(row, known, shape)
    return step.collectives_ms + step.expert_wait_ms


def _without_experts_ms(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    step = _step(row, known, shape)
    return step.total_ms - step.experts_ms


def _ratio(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    other = _stack(row["stack"], tuple(row["over_stack_changes"].items()))
    return _step(row, known, shape).total_ms / _step(row, known, shape, other).total_ms


def _block_ratio(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    """Speed with the stack's block over that with another; each accepts what its length gives."""

    def speed(stack: Stack) -> float:
        tokens = tokens_with_block(row["tokens_per_step"], stack.block)
        return tokens / _step({**row, "tokens_per_step": tokens}, known, shape, stack).total_ms

    other = _stack(row["stack"], tuple({**row["stack_changes"], **row["over_stack_changes"]}.items()))
    return speed(stack_of(row)) / speed(other)


def _prefill_ratio(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    other = {**row, "stack_changes": row["over_stack_changes"]}
    return _prefill_s(other, known, shape) / _prefill_s(row, known, shape)


def _capped_row_ms(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    """Time that each row saves that the cap takes out of the block."""
    stack = stack_of(row)
    full = _stack(row["stack"], (("verify", "full"),))
    live = verify_rows(stack, row["tokens_per_step"], known, None)[1]
    saved = _step(row, known, shape, full).total_ms - _step(row, known, shape).total_ms
    return saved / (stack.block + 1 - live)


def _draft_head_ms(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    stack = stack_of(row)
    rows = row["streams"] * (1 + stack.block)
    return 1e3 * head_s(rank_work(shape, stack), rows, known, fp8=stack.fp8_draft_head)


def _prefill_rate(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    return float(row["prompt_tokens"] / _prefill_s(row, known, shape))


def _prefill_s(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    return prefill(shape, stack_of(row), known, prompt_tokens=row["prompt_tokens"]).total_s


def _interleaved_s(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    """First token of a cold prompt with decode rounds of other streams after each of its chunks."""
    rounds = math.ceil(int(row["prompt_tokens"]) / stack_of(row).chunk_tokens) * int(row["rounds"])
    return _prefill_s(row, known, shape) + rounds * _step(row, known, shape).total_ms / 1e3


def _series(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    """Streams of one series have one acceptance, which is not published. The other rows of the series give
    it: the median of their published speed over streams per step time. So one odd row spoils no other."""
    others = [
        other["published"] / _relative_speed(other, known, shape)
        for other in series_rows(row["series"])
        if other["id"] != row["id"]
    ]
    return float(statistics.median(others)) * _relative_speed(row, known, shape)


def series_rows(series: str) -> list[dict[str, Any]]:
    return _by_series()[series]


@cache
def _by_series() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in published_rows():
        if row["kind"] == "series":
            found.setdefault(row["series"], []).append(row)
    return found


def _relative_speed(row: dict[str, Any], known: Fitted, shape: ModelShape) -> float:
    streams = int(row["streams"])
    per_group = -(-streams // int(row.get("groups", 1)))
    return float(streams / _step(row, known, shape, streams=per_group).total_ms)


_KINDS: dict[str, Callable[[dict[str, Any], Fitted, ModelShape], float]] = {
    "step": _step_ms,
    "rate": _rate,
    "collectives": _collectives_ms,
    "without_experts": _without_experts_ms,
    "ratio": _ratio,
    "block_ratio": _block_ratio,
    "prefill_ratio": _prefill_ratio,
    "capped_row": _capped_row_ms,
    "draft_head": _draft_head_ms,
    "prefill": _prefill_rate,
    "interleaved": _interleaved_s,
    "series": _series,
}

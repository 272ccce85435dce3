"""What streams of one prompt gain over one stream, against streams of different texts and equal ones."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.performance.constants import Fitted, fitted
from launcher.performance.decode_step import decode_step
from launcher.performance.published import published_rows, series_rows, stack_of
from launcher.performance.stack import Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Speed of the most streams of a series over its least, published and by the model: streams of different
    texts, of one prompt (what the rows are predicted with), and with replies that draw the same experts."""

    series: str
    what: str
    streams: tuple[int, int]
    published: float
    different: float
    one_prompt: float
    alike: float


def sharing_of_series(known: Fitted | None = None) -> tuple[Sharing, ...]:
    shape, parameters = shipped_shape("v41-flash"), known or fitted()
    names = dict.fromkeys(row["series"] for row in published_rows() if row["kind"] == "series")
    return tuple(_sharing(shape, parameters, series) for series in names)


def _sharing(shape: ModelShape, known: Fitted, series: str) -> Sharing:
    rows = [row for row in series_rows(series) if not row.get("stack_changes")]
    first, last = rows[0], rows[-1]

    def gain(texts: Texts) -> float:
        return _speed(shape, known, last, texts) / _speed(shape, known, first, texts)

    return Sharing(
        series=series,
        what=first["what"].rpartition(",")[0],
        streams=(first["streams"], last["streams"]),
        published=last["published"] / first["published"],
        different=gain("different"),
        one_prompt=gain("one_prompt"),
        alike=gain("alike"),
    )


def _speed(shape: ModelShape, known: Fitted, row: dict[str, Any], texts: Texts) -> float:
    per_group = -(-row["streams"] // row.get("groups", 1))
    stack = dataclasses.replace(stack_of(row), texts=texts)
    step = decode_step(shape, stack, known, streams=per_group, tokens_per_step=row["tokens_per_step"])
    return float(row["streams"] / step.total_ms)

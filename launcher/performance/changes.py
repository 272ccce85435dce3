"""What each change of this project should be worth on a GB10: the same stack with and without it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.performance.constants import Fitted, fitted
from launcher.performance.decode_step import decode_step
from launcher.performance.prefill import prefill
from launcher.performance.stack import Stack

# Tokens per step of varied prompts: docs/results/tp4/validation-20260925-v22.txt of
# https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks
PROSE, CODE = 2.274, 3.865
PROMPT_TOKENS = 32768
# Context that a recipe may be asked for, against what a chat holds.
CAPACITY = {3: 262144, 4: 1048576}
LIVE_TOKENS = 16384

# Stock SGLang's kernels with this project's layout, and none of the changes in the table.
_WITHOUT = {
    3: Stack(tp=3, heads=96, collective="nccl_triangle", engram_hidden=False, engram_read_share=1.0),
    4: Stack(tp=4, ep=2, collective="nccl_four", engram_hidden=False, engram_read_share=1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """`without` and `with_change` in `unit`: ms per step, or prompt tokens per second."""

    change: str
    sparks: int
    case: str
    unit: str
    without: float
    with_change: float

    @property
    def gain(self) -> float:
        """Speed with it over speed without it, minus one."""
        ratio = self.with_change / self.without
        return ratio - 1 if self.unit == "prompt tok/s" else 1 / ratio - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    name: str
    on: dict[str, Any]
    base: dict[str, Any] = dataclasses.field(default_factory=dict)
    decode: bool = True
    prompt: bool = True
    sparks: tuple[int, ...] = (3, 4)


_CHANGES = (
    _Change(name="balanced heads (72 for 96)", on={"heads": 72}, prompt=False, sparks=(3,)),
    _Change(name="FP8 all-gather of Engram rows", on={"engram_fp8_gather": True}),
    _Change(
        name="Engram reads hidden behind other work", on={"engram_hidden": True, "engram_read_share": 0.0}
    ),
    _Change(name="adaptive DSpark (cap by confidence)", on={"verify": "cap"}, prompt=False),
    _Change(name="sequence parallelism in prefill", on={"sequence_parallel": True}, decode=False),
    _Change(name="indexer with live lengths", on={"index_tokens": LIVE_TOKENS}, prompt=False),
)


def worth_of_changes(known: Fitted | None = None) -> tuple[Worth, ...]:
    """One row for every change, number of Sparks and case."""
    shape, parameters = shipped_shape("v41-flash"), known or fitted()
    rows: list[Worth] = []
    for change in _CHANGES:
        for sparks in change.sparks:
            base = dataclasses.replace(_WITHOUT[sparks], **change.base)
            if "index_tokens" in change.on:
                base = dataclasses.replace(base, index_tokens=CAPACITY[sparks])
            rows += _rows(shape, parameters, change, sparks, base)
    return (*rows, *_together(shape, parameters))


def _rows(shape: ModelShape, known: Fitted, change: _Change, sparks: int, base: Stack) -> list[Worth]:
    changed = dataclasses.replace(base, **change.on)
    rows = []
    if change.decode:
        for case, tokens, streams in _DECODE_CASES:
            rows.append(
                Worth(
                    change=change.name,
                    sparks=sparks,
                    case=case,
                    unit="ms per step",
                    without=_step_ms(shape, base, known, tokens, streams),
                    with_change=_step_ms(shape, changed, known, tokens, streams),
                )
            )
    if change.prompt:
        rows.append(
            Worth(
                change=change.name,
                sparks=sparks,
                case=f"cold prompt of {PROMPT_TOKENS:,}",
                unit="prompt tok/s",
                without=_prompt_rate(shape, base, known),
                with_change=_prompt_rate(shape, changed, known),
            )
        )
    return rows


_DECODE_CASES = (("prose, 1 stream", PROSE, 1), ("code, 4 streams", CODE, 4))


def _together(shape: ModelShape, known: Fitted) -> list[Worth]:
    """All of them at once: they do not add up, because what is left takes the larger share."""
    rows: list[Worth] = []
    for sparks in (3, 4):
        base = dataclasses.replace(_WITHOUT[sparks], index_tokens=CAPACITY[sparks])
        on: dict[str, Any] = {}
        for change in _CHANGES:
            if sparks in change.sparks:
                on |= change.on
        every = _Change(name="all of them", on=on, sparks=(sparks,))
        rows += _rows(shape, known, every, sparks, base)
    return rows


def _step_ms(shape: ModelShape, stack: Stack, known: Fitted, tokens: float, streams: int) -> float:
    return decode_step(shape, stack, known, streams=streams, tokens_per_step=tokens).total_ms


def _prompt_rate(shape: ModelShape, stack: Stack, known: Fitted) -> float:
    return PROMPT_TOKENS / prefill(shape, stack, known, prompt_tokens=PROMPT_TOKENS).total_s

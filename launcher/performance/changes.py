"""What each change of this project should be worth on a GB10: the same stack with and without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.fit.kv_pool import bytes_per_token
from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.performance.acceptance import CODE, PROSE, tokens_of_rows
from launcher.performance.constants import Fitted, constant, fitted
from launcher.performance.decode_step import StepTime, decode_step
from launcher.performance.prefill import PrefillTime, prefill
from launcher.performance.stack import Stack

PROMPT_TOKENS = 32768
# Context that a recipe may be asked for, against what a chat holds.
CAPACITY = {3: 262144, 4: 1048576}
LIVE_TOKENS = 16384
_GIB = 1 << 30
# Items that change by less are left out of a row's terms.
_LEAST_MS, _LEAST_S = 0.05, 0.005

# Stock SGLang's kernels with a layout that starts, and none of the changes in the table.
_WITHOUT = {
    sparks: Stack(
        tp=sparks,
        ep={3: 1, 4: 2}[sparks],
        heads={3: 96, 4: 64}[sparks],
        collective={3: "nccl_triangle", 4: "nccl_switch"}[sparks],
        engram_hidden=False,
        engram_read_share=1.0,
        live_tokens=LIVE_TOKENS,
        index_capacity_tokens=CAPACITY[sparks],
    )
    for sparks in (3, 4)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """`without` and `with_change` in `unit`. `terms`: the model's items that differ, in ms of a step or
    seconds of the prompt, with minus without."""

    change: str
    sparks: int
    case: str
    unit: str
    without: float
    with_change: float
    terms: Mapping[str, float]

    @property
    def gain(self) -> float:
        """Speed (or tokens that fit) with it over without it, minus one."""
        ratio = self.with_change / self.without
        return 1 / ratio - 1 if self.unit == "ms per step" else ratio - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """`on`: what it sets in a stack. `planned`: rows of a block that a planner sends, by text. `is_width`: it
    changes how wide a verify step is, which many streams feel most."""

    name: str
    on: Mapping[str, Any]
    sparks: tuple[int, ...] = (3, 4)
    decode: bool = True
    prompt: bool = True
    planned: Mapping[str, float] = dataclasses.field(default_factory=dict)
    in_all: bool = True
    is_width: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    text: str
    tokens: float
    streams: int

    @property
    def name(self) -> str:
        return f"{self.text}, {self.streams} stream{'s' if self.streams > 1 else ''}"


_CASES = (_Case(text="prose", tokens=PROSE, streams=1), _Case(text="code", tokens=CODE, streams=4))
# The most that a recipe admits, on four Sparks.
_CROWDED = _Case(text="prose", tokens=PROSE, streams=16)
_CHANGES = (
    _Change(name="balanced heads (72 for 96)", on={"heads": 72}, sparks=(3,)),
    _Change(name="indexer with live lengths", on={"index_capacity_tokens": 0}, prompt=False),
    _Change(
        name="Engram rows read behind other work",
        # Of a prompt the first chunk's rows are waited for.
        on={"engram_hidden": True, "engram_read_share": 1024 / PROMPT_TOKENS},
    ),
    _Change(name="FP8 all-gather of Engram rows", on={"engram_fp8_gather": True}),
    _Change(
        name="FP8 layers at memory speed (if the boot check finds such a kernel)",
        on={"dense": "fused"},
        prompt=False,
    ),
    _Change(name="wo_a in FP8 (if the boot check takes it)", on={"wo_a_bf16": False}, prompt=False),
    _Change(
        name="experts without groups, width padded to 640", on={"ep": 1, "expert_width": 640}, sparks=(4,)
    ),
    _Change(name="KV layouts of 528 and 288 bytes", on={"kv_layout": "v41"}, prompt=False),
    _Change(name="verify rows capped by confidence", on={"verify": "cap"}, prompt=False, is_width=True),
    _Change(
        name="verify rows chosen by a planner",
        on={"verify": "planner"},
        prompt=False,
        planned={"prose": constant("planned_rows_prose"), "code": constant("planned_rows_code")},
        in_all=False,
        is_width=True,
    ),
    _Change(
        name="draft blocks of 3 in place of 5", on={"block": 3}, prompt=False, in_all=False, is_width=True
    ),
    _Change(name="sequence parallelism in prefill", on={"sequence_parallel": True}, decode=False),
    _Change(
        name="chunks of 4,096 tokens where memory allows",
        on={"chunk_tokens": 4096},
        decode=False,
        sparks=(4,),
    ),
)


def worth_of_changes(known: Fitted | None = None) -> tuple[Worth, ...]:
    """One row for every change, number of Sparks and case, then all of them at once."""
    shape, parameters = shipped_shape("v41-flash"), known or fitted()
    return tuple(
        row
        for change in (*_CHANGES, *_together())
        for sparks in change.sparks
        for row in _rows(shape, parameters, change, sparks)
    )


def _together() -> Iterator[_Change]:
    """They do not add up, because what is left takes the larger share."""
    for sparks in (3, 4):
        on: dict[str, Any] = {}
        for change in _CHANGES:
            if sparks in change.sparks and change.in_all:
                on |= change.on
        yield _Change(name="all of them, with the cap", on=on, sparks=(sparks,))


def _rows(shape: ModelShape, known: Fitted, change: _Change, sparks: int) -> Iterator[Worth]:
    base = _WITHOUT[sparks]
    changed = dataclasses.replace(base, **change.on)
    if change.decode:
        for case in (*_CASES, _CROWDED) if change.is_width and sparks == 4 else _CASES:
            yield _decode_row(shape, known, change, sparks, case, (base, changed))
    if change.prompt:
        before, after = (
            prefill(shape, stack, known, prompt_tokens=PROMPT_TOKENS) for stack in (base, changed)
        )
        yield Worth(
            change=change.name,
            sparks=sparks,
            case=f"cold prompt of {PROMPT_TOKENS:,}",
            unit="prompt tok/s",
            without=PROMPT_TOKENS / before.total_s,
            with_change=PROMPT_TOKENS / after.total_s,
            terms=_differences(before, after, _LEAST_S),
        )
    if changed.kv_layout != base.kv_layout and len(change.on) == 1:
        yield _pool_row(shape, change, sparks, base.kv_layout, changed.kv_layout)


def _decode_row(
    shape: ModelShape, known: Fitted, change: _Change, sparks: int, case: _Case, stacks: tuple[Stack, Stack]
) -> Worth:
    rows = change.planned.get(case.text)
    before, after = (
        decode_step(shape, stack, known, streams=case.streams, tokens_per_step=case.tokens, planned_rows=rows)
        for stack in stacks
    )
    terms = _differences(before, after, _LEAST_MS)
    tokens = tokens_of_rows(case.tokens, stacks[1].block + 1 if rows is None else rows)
    if rows is None and stacks[1].block == stacks[0].block:
        unit, without, with_change = "ms per step", before.total_ms, after.total_ms
    else:
        # Fewer rows accept fewer tokens: only tokens per second can be compared.
        unit = "tok/s"
        without = 1000 * case.streams * case.tokens / before.total_ms
        with_change = 1000 * case.streams * tokens / after.total_ms
    return Worth(
        change=change.name,
        sparks=sparks,
        case=case.name,
        unit=unit,
        without=without,
        with_change=with_change,
        terms=terms,
    )


def _pool_row(shape: ModelShape, change: _Change, sparks: int, before: str, after: str) -> Worth:
    sizes = [
        bytes_per_token(shape.config, has_draft=True, padded=False, kv_layout=layout)
        for layout in (before, after)
    ]
    return Worth(
        change=change.name,
        sparks=sparks,
        case=f"KV pool ({sizes[0]:,.2f} and {sizes[1]:,.2f} bytes a token)",
        unit="tokens per GiB",
        without=_GIB / sizes[0],
        with_change=_GIB / sizes[1],
        terms={},
    )


def _differences(
    before: StepTime | PrefillTime, after: StepTime | PrefillTime, least: float
) -> dict[str, float]:
    old, new = before.items(), after.items()
    return {name: new[name] - old[name] for name in old if abs(new[name] - old[name]) >= least}

"""Native MXFP4 experts against other formats: bytes on a rank, whether they fit, and the step's time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.fit.rank_weights import plan_split, rank_part_bytes
from launcher.fit.weight_classes import Part
from launcher.performance.acceptance import PROSE
from launcher.performance.constants import Fitted, constant, fitted
from launcher.performance.decode_step import decode_step
from launcher.performance.stack import MXFP4_BITS, Stack

_GIB = 1 << 30
# Name -> bits of a weight with its scales.
FORMATS = {
    "MXFP4 (native)": MXFP4_BITS,
    "NVFP4": 4.5,
    "EXL3 3.5 bpw": 3.5,
    "EXL3 2.75 bpw": 2.75,
    "FP8, 32 x 32 blocks": 8 + 8 / 1024,
    "BF16": 16.0,
}
_COLLECTIVE = {2: "nccl_pair", 3: "nccl_triangle", 4: "nccl_switch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatWorth:
    """`weights_gib`: all weights of a rank but Engram. `step_ms`: prose, one stream, with kernels that read
    as fast; None where the weights alone do not fit."""

    format: str
    sparks: int
    bits: float
    weights_gib: float
    fits: bool
    step_ms: float | None


def worth_of_formats(known: Fitted | None = None) -> tuple[FormatWorth, ...]:
    return tuple(_rows(shipped_shape("v41-flash"), known or fitted()))


def _rows(shape: ModelShape, known: Fitted) -> Iterator[FormatWorth]:
    for sparks, collective in _COLLECTIVE.items():
        stack = Stack(
            tp=sparks, ep=2 if sparks == 4 else 1, heads=72 if sparks == 3 else 64, collective=collective
        )
        parts = rank_part_bytes(shape, plan_split(shape.config, tp=sparks, ep=stack.ep, heads=stack.heads))
        routed = parts[Part.ROUTED] + parts[Part.DRAFT_ROUTED]
        rest = sum(parts.values()) - parts.get(Part.ENGRAM_ROWS, 0) - routed
        for name, bits in FORMATS.items():
            size = (rest + routed * bits / MXFP4_BITS) / _GIB
            fits = size < constant("memory_usable_gib")
            step = decode_step(
                shape, dataclasses.replace(stack, expert_bits=bits), known, streams=1, tokens_per_step=PROSE
            )
            yield FormatWorth(
                format=name,
                sparks=sparks,
                bits=bits,
                weights_gib=size,
                fits=fits,
                step_ms=step.total_ms if fits else None,
            )

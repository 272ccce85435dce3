"""The order of index scores as integers, and how many scores there are of each size.

A score is a bf16 value in fp32, so its upper 16 bits order it: keys of 0 to 65535, -0 as 0. The upper 12
bits are counted while scores are made (sign, exponent and three bits of the mantissa, 16 KiB a row), so that
a selection looks at the scores of one such bin once more. With few rows a row is counted in several copies:
on an H200 near half the time of one row of 131,072 scores went to atomics on the same few words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

COARSE_BINS = 4096
_MOST_COPIES = 4


def is_interpreted() -> bool:
    """Whether Triton runs in its interpreter (TRITON_INTERPRET=1, tests without a GPU)."""
    return not isinstance(order_key, triton.JITFunction)


@triton.jit
def order_key(score):  # type: ignore[no-untyped-def]
    """int32 keys in the order of the scores; -1 for -inf and NaN, which are no candidates."""
    upper = (tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True) >> 16) & 0xFFFF
    key = tl.where(upper >= 0x8000, 0xFFFF - upper, upper + 0x8000)
    return tl.where(score > -float("inf"), key, -1)


@triton.jit  # type: ignore[untyped-decorator]
def count_scores(coarse_ptr, row, score, is_live, COPIES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Integer atomics, so that the counts do not depend on their order."""
    key = order_key(score)
    copy = row * COPIES + tl.program_id(1) % COPIES
    tl.atomic_add(
        coarse_ptr + copy * 4096 + (key >> 4), tl.full(key.shape, 1, tl.int32), mask=is_live & (key >= 0),
        sem="relaxed",
    )  # fmt: skip


_INTERPRETED = tl.constexpr(is_interpreted())


@triton.jit
def round_to_bf16(value):  # type: ignore[no-untyped-def]
    """fp32 holding the nearest bf16, ties to even. Triton's interpreter casts toward zero: integers there."""
    if _INTERPRETED:
        bits = value.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    else:
        return value.to(tl.bfloat16).to(tl.float32)


def zero_counts(rows: int, device: torch.device) -> torch.Tensor:
    """int32 [rows, copies, 4096] of zeros, for one making of scores and one selection."""
    copies = max(1, _MOST_COPIES // max(1, rows))
    return torch.zeros((rows, copies, COARSE_BINS), dtype=torch.int32, device=device)


def require_counts(coarse: torch.Tensor, rows: int) -> None:
    """Raises ValueError unless coarse can be the counts of so many rows."""
    if coarse.dtype != torch.int32 or coarse.dim() != 3 or not coarse.is_contiguous():
        raise ValueError(f"coarse must come from zero_counts, got {coarse.dtype} {tuple(coarse.shape)}.")
    if coarse.shape[0] != rows or coarse.shape[2] != COARSE_BINS:
        raise ValueError(f"coarse must be int32 [{rows}, copies, {COARSE_BINS}], got {tuple(coarse.shape)}.")

"""Products of bf16 rows with e4m3 groups, dequantised on the way: half the bytes of bf16, the same values.

T rows, G groups, R output features and D inputs of a group, blocks of 32 x 32 with a power of two each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import knobs

from sgl_ext.wo_a.repack import BLOCK, PackedGroups

_ROWS, _INPUTS = 16, 128  # rows and inputs of a tile; a tile has one block's 32 output features
_COPY = 1024


@triton.jit
def _power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2 ** (exponent - 127) * 256, the 256 for what _widen leaves out; scales are far from float32's ends."""
    return ((exponent.to(tl.int32) + 8) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _widen(code):  # type: ignore[no-untyped-def]
    """e4m3 bits as float32 / 256: the same sign, exponent and mantissa in a half, whose bias is 8 larger.
    Halves that are subnormal widen exactly, which float32 with flushed subnormals would not.
    """
    bits = code.to(tl.int16)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    rows, codes, exponents, out, num_rows, row_stride, group_stride,
    R: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """out [T, G, R] = rows [T, G, D] @ weight [G, R, D]; one block of output features per program."""
    block, group = tl.program_id(0), tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    feature = block * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, D, INPUTS):
        place = start + tl.arange(0, INPUTS)
        at = rows + row[:, None].to(tl.int64) * row_stride + group * group_stride + place[None, :]
        x = tl.load(at, mask=row[:, None] < num_rows, other=0.0)
        code = tl.load(codes + (group * R + feature[:, None]) * D + place[None, :])
        step = (group * (R // BLOCK) + block) * (D // BLOCK) + place // BLOCK
        weight = _widen(code) * _power_of_two(tl.load(exponents + step))[None, :]
        total += tl.dot(x.to(DOT), tl.trans(weight.to(tl.bfloat16).to(DOT)))
    at = out + (row[:, None].to(tl.int64) * tl.num_programs(1) + group) * R + feature[None, :]
    tl.store(at, total.to(tl.bfloat16), mask=row[:, None] < num_rows)


@triton.jit  # type: ignore[untyped-decorator]
def _dequantise(  # type: ignore[no-untyped-def]
    codes, exponents, out, D: tl.constexpr, BLOCK: tl.constexpr, COPY: tl.constexpr
):
    """bf16 of one run of COPY weights of a row."""
    row, place = tl.program_id(1), tl.program_id(0) * COPY + tl.arange(0, COPY)
    mask = place < D
    code = tl.load(codes + row.to(tl.int64) * D + place, mask=mask, other=0)
    exponent = tl.load(exponents + (row // BLOCK) * (D // BLOCK) + place // BLOCK, mask=mask, other=0)
    value = (_widen(code) * _power_of_two(exponent)).to(tl.bfloat16)
    tl.store(out + row.to(tl.int64) * D + place, value, mask=mask)


def multiply_groups(rows: torch.Tensor, packed: PackedGroups) -> torch.Tensor:
    """bf16 [T, G, D] (inputs contiguous) -> bf16 [T, G, R]. The order of adding is fixed."""
    groups, features, inputs = packed.codes.shape
    num_rows = rows.shape[0]
    out = rows.new_empty((num_rows, groups, features))
    assert rows.stride(2) == 1 and inputs % _INPUTS == 0, (rows.stride(), inputs)
    grid = (features // BLOCK, groups, triton.cdiv(num_rows, _ROWS))
    if num_rows:
        _multiply[grid](
            rows, packed.codes.view(torch.uint8), packed.exponents, out, num_rows, rows.stride(0),
            rows.stride(1), R=features, D=inputs, ROWS=_ROWS, INPUTS=_INPUTS, BLOCK=BLOCK,
            DOT=tl.float32 if knobs.runtime.interpret else tl.bfloat16,  # NumPy knows no bf16
            num_warps=4, num_stages=4,
        )  # fmt: skip
    return out


def dequantise_groups(packed: PackedGroups, out: torch.Tensor) -> torch.Tensor:
    """The weights as bf16 [G, R, D], written to out: exactly what SGLang had loaded."""
    groups, features, inputs = packed.codes.shape
    grid = (triton.cdiv(inputs, _COPY), groups * features)
    codes = packed.codes.view(torch.uint8)
    _dequantise[grid](codes, packed.exponents, out, D=inputs, BLOCK=BLOCK, COPY=_COPY)
    return out

"""Triton kernels of the GPU path: row ids to pinned memory, payloads to bf16 rows, and the time stamps.

Pinned host memory is passed as an address (an int), as SGLang's engram_gather does with its tables.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from sgl_ext.engram.payload import BLOCK, PayloadLayout

WAIT_BUCKETS = 4096  # of one microsecond; the last one holds everything longer
_E8M0_ZERO = 2.0**-127


@triton.jit  # type: ignore[untyped-decorator]
def _export_ids_kernel(  # type: ignore[no-untyped-def]
    ids_ptr,
    out_address,
    stride_token,
    stride_layer,
    stride_column,
    out_layer_stride,
    total,
    per_layer,
    RANK: tl.constexpr,
    TP: tl.constexpr,
    OWN: tl.constexpr,
    SIZE: tl.constexpr,
):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < total
    layer = place // per_layer
    rest = place % per_layer
    token = (rest // OWN).to(tl.int64)
    column = RANK + (rest % OWN) * TP
    source = ids_ptr + token * stride_token + layer * stride_layer + column * stride_column
    ids = tl.load(source, mask=inside, other=0)
    out = out_address.to(tl.int64).to(tl.pointer_type(tl.int64))
    tl.store(out + layer * out_layer_stride + rest, ids, mask=inside)


@triton.jit
def _stamp_kernel(stamp_ptr):  # type: ignore[no-untyped-def]
    tl.store(stamp_ptr, globaltimer())


@triton.jit  # type: ignore[untyped-decorator]
def _dequantise_kernel(  # type: ignore[no-untyped-def]
    payload_ptr,
    out_ptr,
    error_address,
    stamp_ptr,
    waits_ptr,
    num_tokens,
    payload_bytes,
    scale_offset,
    status_offset,
    COLUMNS: tl.constexpr,
    TP: tl.constexpr,
    DIM: tl.constexpr,
    BLK: tl.constexpr,
    E8M0_ZERO: tl.constexpr,
    STAMPED: tl.constexpr,
    BUCKETS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if STAMPED:  # noqa: SIM102, a compile-time branch around a run-time one
        if row == 0:
            # One program of one kernel at a time on this stream: no atomics needed.
            waited_us = (globaltimer() - tl.load(stamp_ptr)) // 1000
            bucket = tl.minimum(tl.maximum(waited_us, 0), BUCKETS - 1)
            tl.store(waits_ptr + bucket, tl.load(waits_ptr + bucket) + 1)
    token = row // COLUMNS
    column = row % COLUMNS
    rank = column % TP
    idx = token * (COLUMNS // TP) + column // TP
    held = token < num_tokens
    idx = tl.where(held, idx, 0)
    base = payload_ptr + rank * payload_bytes
    status = tl.load((base + status_offset).to(tl.pointer_type(tl.int64)))
    if status != 0:  # noqa: SIM102, the language takes no chained comparison of tensors
        if row < TP:
            tl.store(error_address.to(tl.int64).to(tl.pointer_type(tl.int64)), status)
    offs = tl.arange(0, DIM)
    mask = offs < tl.where(held, DIM, 0)
    weight = (base + idx * DIM).to(tl.pointer_type(tl.float8e4nv))
    values = tl.load(weight + offs, mask=mask, other=0.0).to(tl.float32)
    exponents = tl.load(base + scale_offset + idx * (DIM // BLK) + offs // BLK, mask=mask, other=0).to(
        tl.int32
    )
    # 2 ** (e - 127) from its bits: exact, without denormal flush.
    scale = (exponents << 23).to(tl.float32, bitcast=True)
    scale = tl.where(exponents == 0, E8M0_ZERO, scale)
    out = values * scale
    if TP > 1:
        out = tl.where(out == 0.0, 0.0, out)
    out = tl.where(held, out, 0.0)
    # A failed read must not look like rows; the step is ended before its tokens leave the engine.
    out = tl.where(status != 0, float("nan"), out)
    tl.store(out_ptr + row * DIM + offs, out.to(tl.bfloat16))


def export_ids(hash_ids: torch.Tensor, out: torch.Tensor, *, rank: int, tp: int) -> None:
    """hash_ids [T, layers, columns] -> this rank's columns in pinned out [layers, >= T * columns / tp]."""
    tokens, layers, columns = hash_ids.shape
    own = columns // tp
    total = layers * tokens * own
    _export_ids_kernel[(triton.cdiv(total, 256),)](
        hash_ids,
        out.data_ptr(),
        hash_ids.stride(0),
        hash_ids.stride(1),
        hash_ids.stride(2),
        out.stride(0),
        total,
        tokens * own,
        RANK=rank,
        TP=tp,
        OWN=own,
        SIZE=256,
        num_warps=4,
    )


def stamp(place: torch.Tensor) -> None:
    """Writes the GPU's clock (nanoseconds) when the stream gets here."""
    _stamp_kernel[(1,)](place, num_warps=1)


def dequantise_gathered(
    payloads: torch.Tensor,
    out: torch.Tensor,
    layout: PayloadLayout,
    *,
    tp: int,
    num_columns: int,
    error_address: int,
    stamp_and_waits: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """payloads uint8 [tp * total_bytes] -> out bf16 [tokens, columns, dim]; tokens past the payload are zero.

    error_address: pinned int64 that receives a failed rank's status. stamp_and_waits: counts the time since
    the stamp into a histogram.
    """
    rows = out.shape[0] * num_columns
    if rows == 0:
        return
    stamped: tuple[Any, Any] = stamp_and_waits if stamp_and_waits is not None else (payloads, payloads)
    _dequantise_kernel[(rows,)](
        payloads,
        out,
        error_address,
        *stamped,
        layout.num_ids * tp // num_columns,
        layout.total_bytes,
        layout.scale_offset,
        layout.status_offset,
        COLUMNS=num_columns,
        TP=tp,
        DIM=layout.dim,
        BLK=BLOCK,
        E8M0_ZERO=_E8M0_ZERO,
        STAMPED=stamp_and_waits is not None,
        BUCKETS=WAIT_BUCKETS,
        num_warps=4 if layout.dim >= 128 else 1,
    )

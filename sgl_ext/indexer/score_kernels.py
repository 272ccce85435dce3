"""Index scores of one query row in Triton, from the packed 68-byte key slots, for live positions only.

Layout of a page: page_size payloads of 64 bytes (128 e2m1 codes, low nibble first), then page_size times 4
power-of-two exponents, one per 32 codes. Rounding points are SGLang's: each dot to bf16, relu, times the bf16
head weight to bf16, the sum to bf16. B rows, H index heads, D = 128.

Example (tests/sgl_ext/indexer): q = 1, keys of ones with scale 1, weight 1: every live score is 128 * H.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 64
_WORKERS = 192  # a row: four programs for each of a GB10's 48 SMs
_BLOCK_POSITIONS = 8
SLOT_BYTES = 68
KEY_DIM = 128


@triton.jit
def _decode_e2m1(code):  # type: ignore[no-untyped-def]
    """exponent in bits 2..1, mantissa in bit 0, sign in bit 3."""
    exponent = (code >> 1) & 3
    mantissa = (code & 1).to(tl.float32)
    power = tl.where(exponent == 3, 4.0, tl.where(exponent == 2, 2.0, 1.0))
    size = tl.where(exponent == 0, mantissa * 0.5, (1.0 + mantissa * 0.5) * power)
    return tl.where(code >= 8, -size, size)


@triton.jit
def _round_to_bf16(value):  # type: ignore[no-untyped-def]
    """fp32 holding the nearest bf16, ties to even, by integers: Triton's interpreter casts toward zero."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)


# Triton's interpreter multiplies bf16 as if its bits were integers; in fp32 the same products are exact.
_DOT_TYPE = tl.bfloat16 if isinstance(_decode_e2m1, triton.JITFunction) else tl.float32


@triton.jit  # type: ignore[untyped-decorator]
def _score(  # type: ignore[no-untyped-def]
    q_ptr, weights_ptr, req_ptr, table_ptr, lens_ptr, keys_ptr, blocks_ptr, out_ptr,
    capacity, num_blocks, page_size, page_bytes, table_stride, out_stride,
    H: tl.constexpr, HEADS: tl.constexpr, RATIO: tl.constexpr, LISTED: tl.constexpr, TILE: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Column c of the output is position c, or (LISTED) position blocks[c // 8] * 8 + c % 8."""
    row = tl.program_id(0)
    heads, halves, group = tl.arange(0, HEADS), tl.arange(0, 64), tl.arange(0, 64) // 16
    is_head = heads[:, None] < H
    q_at = q_ptr + row * H * 128 + heads[:, None] * 128 + 2 * halves[None, :]
    q_even = tl.load(q_at, mask=is_head, other=0.0).to(DOT)
    q_odd = tl.load(q_at + 1, mask=is_head, other=0.0).to(DOT)
    weights = tl.load(weights_ptr + row * H + heads, mask=heads < H, other=0.0).to(tl.float32)
    length = tl.load(lens_ptr + row).to(tl.int32)
    request = tl.load(req_ptr + row).to(tl.int64)
    live = tl.minimum(length, capacity)
    if LISTED:
        live = num_blocks * 8
    for tile in range(tl.program_id(1), tl.cdiv(live, TILE), tl.num_programs(1)):
        column = tile * TILE + tl.arange(0, TILE)
        position = column
        if LISTED:
            block = tl.load(blocks_ptr + row * num_blocks + column // 8, mask=column < live, other=-1)
            position = tl.where(block >= 0, block * 8 + column % 8, length)
        is_live = (column < live) & (position < length)
        slot = tl.load(
            table_ptr + request * table_stride + position.to(tl.int64) * RATIO, mask=is_live, other=0
        )
        slot = slot.to(tl.int64) // RATIO
        page, place = (slot // page_size) * page_bytes, slot % page_size
        packed = tl.load(
            keys_ptr + (page + place * 64)[:, None] + halves[None, :], mask=is_live[:, None], other=0
        )
        exponent = tl.load(
            keys_ptr + (page + page_size * 64 + place * 4)[:, None] + group[None, :],
            mask=is_live[:, None],
            other=127,
        )
        scale = (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        packed = packed.to(tl.int32)
        k_even = (_decode_e2m1(packed & 0xF) * scale).to(DOT)
        k_odd = (_decode_e2m1(packed >> 4) * scale).to(DOT)
        dots = tl.dot(q_even, tl.trans(k_even)) + tl.dot(q_odd, tl.trans(k_odd))
        dots = tl.maximum(_round_to_bf16(dots), 0.0)
        weighted = _round_to_bf16(dots * weights[:, None])
        score = _round_to_bf16(tl.sum(weighted, axis=0))
        score = tl.where(is_live, score, -float("inf"))
        tl.store(out_ptr + row.to(tl.int64) * out_stride + column, score, mask=column < live)


def score_live(
    q: torch.Tensor,
    weights: torch.Tensor,
    req: torch.Tensor,
    req_to_token: torch.Tensor,
    lens: torch.Tensor,
    keys: torch.Tensor,
    *,
    capacity: int,
    ratio: int,
    blocks: torch.Tensor | None = None,
) -> torch.Tensor:
    """fp32 [B, capacity], written up to each row's length only; with blocks (int32 [B, n], -1 for none)
    fp32 [B, 8 n], of those blocks' positions, -inf where a position is not live.

    q bf16 [B, H, 128], weights [B, H], req [B] rows of req_to_token int32 [requests, tokens], lens [B] in
    compressed positions, keys uint8 [pages, page_size * 68].
    """
    rows, heads, dim = q.shape
    if q.dtype != torch.bfloat16 or dim != KEY_DIM:
        raise ValueError(f"q must be bf16 [B, H, {KEY_DIM}], got {q.dtype} {tuple(q.shape)}.")
    if keys.dtype != torch.uint8 or keys.dim() != 2 or keys.shape[1] % SLOT_BYTES or keys.stride(1) != 1:
        raise ValueError(f"keys must be uint8 [pages, page_size * 68], got {keys.dtype} {tuple(keys.shape)}.")
    if req_to_token.stride(1) != 1 or capacity * ratio > req_to_token.shape[1]:
        raise ValueError(
            f"req_to_token must hold {capacity * ratio} tokens a row, got {req_to_token.shape[1]}."
        )
    listed = 0 if blocks is None else blocks.shape[1]
    width = capacity if blocks is None else listed * _BLOCK_POSITIONS
    out = torch.empty((rows, width), dtype=torch.float32, device=q.device)
    if rows == 0 or width == 0:
        return out
    _score[(rows, min(_WORKERS, -(-width // _TILE)))](
        q.contiguous(),
        weights.to(torch.bfloat16).contiguous(),
        req.contiguous(),
        req_to_token,
        lens.contiguous(),
        keys,
        q if blocks is None else blocks.contiguous(),
        out,
        capacity,
        listed,
        keys.shape[1] // SLOT_BYTES,
        keys.stride(0),
        req_to_token.stride(0),
        out.stride(0),
        H=heads,
        HEADS=max(16, triton.next_power_of_2(heads)),
        RATIO=ratio,
        LISTED=blocks is not None,
        TILE=_TILE,
        DOT=_DOT_TYPE,
        num_warps=4,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _block_max(scores_ptr, lens_ptr, out_ptr, capacity, score_stride, out_stride, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    length = tl.minimum(tl.load(lens_ptr + row), capacity).to(tl.int32)
    num_blocks = tl.cdiv(length, 8)
    for tile in range(tl.program_id(1), tl.cdiv(num_blocks, TILE), tl.num_programs(1)):
        block = tile * TILE + tl.arange(0, TILE)
        place = block[:, None] * 8 + tl.arange(0, 8)[None, :]
        score = tl.load(
            scores_ptr + row.to(tl.int64) * score_stride + place, mask=place < length, other=-float("inf")
        )
        highest = tl.where(block == num_blocks - 1, float("inf"), tl.max(score, axis=1))
        tl.store(out_ptr + row.to(tl.int64) * out_stride + block, highest, mask=block < num_blocks)


def block_maxima_live(scores: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """fp32 [B, ceil(capacity / 8)], written for live blocks only; the newest is +inf. See reference."""
    rows, capacity = scores.shape
    out = torch.empty((rows, -(-capacity // _BLOCK_POSITIONS)), dtype=torch.float32, device=scores.device)
    if rows and capacity:
        grid = (rows, min(_WORKERS, -(-out.shape[1] // 128)))
        _block_max[grid](scores, lens, out, capacity, scores.stride(0), out.stride(0), TILE=128)
    return out

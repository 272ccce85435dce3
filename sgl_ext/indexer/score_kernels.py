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

from sgl_ext.indexer.score_order import count_scores, is_interpreted, require_counts, round_to_bf16

_TILE = 64  # as SGLang's kernel: another tile adds the heads in another order, and the last bit may differ
_WARPS = 4
_FEWEST_WORKERS, _MOST_WORKERS, _PROGRAMS = (
    64,
    128,
    1536,
)  # a row; all rows: fastest of those timed on an H200
_BLOCK_POSITIONS = 8
SLOT_BYTES = 68
KEY_DIM = 128

# Triton's interpreter multiplies bf16 as if its bits were integers; in fp32 the same products are exact.
_DOT_TYPE = tl.float32 if is_interpreted() else tl.bfloat16


@triton.jit
def _decode_e2m1(code, scale):  # type: ignore[no-untyped-def]
    """code (sign, two bits of exponent, one of mantissa) times scale. The low three bits, put where fp32 has
    the end of its exponent and the start of its mantissa, are the value times 2**-126, exactly: also 0.5,
    which is subnormal there.
    """
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37 * scale


@triton.jit  # type: ignore[untyped-decorator]
def _find_slots(  # type: ignore[no-untyped-def]
    table_ptr, blocks_ptr, column, length, live, row, num_blocks, RATIO: tl.constexpr, LISTED: tl.constexpr
):
    """Slot of each column's position, and whether that position is live."""
    position = column
    if LISTED:
        block = tl.load(blocks_ptr + row * num_blocks + column // 8, mask=column < live, other=-1)
        position = tl.where(block >= 0, block * 8 + column % 8, length)
    is_live = (column < live) & (position < length)
    return tl.load(table_ptr + position.to(tl.int64) * RATIO, mask=is_live, other=0) // RATIO, is_live


@triton.jit
def _load_keys(keys_ptr, words_ptr, slot, is_live, page_size, page_bytes):  # type: ignore[no-untyped-def]
    """Payloads uint8 [TILE, 64] and the four exponents of each key as one int32 [TILE]."""
    page, place = slot.to(tl.int64) // page_size, slot % page_size
    start = page * page_bytes + place * 64
    packed = tl.load(keys_ptr + start[:, None] + tl.arange(0, 64)[None, :], mask=is_live[:, None], other=0)
    exponents = tl.load(
        words_ptr + page * (page_bytes // 4) + page_size * 16 + place, mask=is_live, other=0x7F7F7F7F
    )
    return packed, exponents


@triton.jit  # type: ignore[untyped-decorator]
def _score(  # type: ignore[no-untyped-def]
    q_ptr, weights_ptr, req_ptr, table_ptr, lens_ptr, keys_ptr, words_ptr, blocks_ptr, out_ptr, coarse_ptr,
    capacity, num_blocks, page_size, page_bytes, table_stride, out_stride,
    H: tl.constexpr, HEADS: tl.constexpr, RATIO: tl.constexpr, LISTED: tl.constexpr, COPIES: tl.constexpr,
    TILE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Column c of the output is position c, or (LISTED) position blocks[c // 8] * 8 + c % 8.

    Keys are loaded in the iteration that multiplies them: carried over from the one before, Triton gives the
    product another order, and a score in a million has another last bit than SGLang's.
    """
    row, first, step = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    length = tl.load(lens_ptr + row).to(tl.int32)
    live = tl.minimum(length, capacity)
    if LISTED:
        live = num_blocks * 8
    tiles = tl.cdiv(live, TILE)
    if first < tiles:
        table_ptr += tl.load(req_ptr + row).to(tl.int64) * table_stride
        places = tl.arange(0, TILE)
        heads, halves = tl.arange(0, HEADS), tl.arange(0, 64)
        is_head = heads[:, None] < H
        q_at = q_ptr + row * H * 128 + heads[:, None] * 128 + 2 * halves[None, :]
        q_even = tl.load(q_at, mask=is_head, other=0.0).to(DOT)
        q_odd = tl.load(q_at + 1, mask=is_head, other=0.0).to(DOT)
        weights = tl.load(weights_ptr + row * H + heads, mask=heads < H, other=0.0).to(tl.float32)
        shifts = (halves // 16) * 8
        for tile in range(first, tiles, step):
            slot, is_live = _find_slots(
                table_ptr, blocks_ptr, tile * TILE + places, length, live, row, num_blocks, RATIO, LISTED
            )
            packed, exponents = _load_keys(keys_ptr, words_ptr, slot, is_live, page_size, page_bytes)
            scale = (((exponents[:, None] >> shifts[None, :]) & 0xFF) << 23).to(tl.float32, bitcast=True)
            codes = packed.to(tl.int32)
            k_even = _decode_e2m1(codes, scale).to(DOT)
            k_odd = _decode_e2m1(codes >> 4, scale).to(DOT)
            dots = tl.dot(q_even, tl.trans(k_even)) + tl.dot(q_odd, tl.trans(k_odd))
            weighted = round_to_bf16(tl.maximum(round_to_bf16(dots), 0.0) * weights[:, None])
            score = round_to_bf16(tl.sum(weighted, axis=0))
            score = tl.where(is_live, score, -float("inf"))
            column = tile * TILE + places
            tl.store(out_ptr + row.to(tl.int64) * out_stride + column, score, mask=column < live)
            if COPIES > 0:
                count_scores(coarse_ptr, row, score, is_live, COPIES)


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
    coarse: torch.Tensor | None = None,
) -> torch.Tensor:
    """fp32 [B, capacity], written up to each row's length only; with blocks (int32 [B, n], -1 for none)
    fp32 [B, 8 n], of those blocks' positions, -inf where a position is not live.

    q bf16 [B, H, 128], weights [B, H], req [B] rows of req_to_token int32 [requests, tokens], lens [B] in
    compressed positions, keys uint8 [pages, page_size * 68]. coarse, from score_order.zero_counts, has every
    score counted in it.
    """
    rows, heads, dim = q.shape
    if q.dtype != torch.bfloat16 or dim != KEY_DIM:
        raise ValueError(f"q must be bf16 [B, H, {KEY_DIM}], got {q.dtype} {tuple(q.shape)}.")
    if keys.dtype != torch.uint8 or keys.dim() != 2 or keys.shape[1] % SLOT_BYTES or keys.stride(1) != 1:
        raise ValueError(f"keys must be uint8 [pages, page_size * 68], got {keys.dtype} {tuple(keys.shape)}.")
    if keys.stride(0) % 4 or keys.storage_offset() % 4:
        raise ValueError(f"pages must start at words of 4 bytes, got a stride of {keys.stride(0)} bytes.")
    if req_to_token.stride(1) != 1 or capacity * ratio > req_to_token.shape[1]:
        raise ValueError(
            f"req_to_token must hold {capacity * ratio} tokens a row, got {req_to_token.shape[1]}."
        )
    if coarse is not None:
        require_counts(coarse, rows)
    listed = 0 if blocks is None else blocks.shape[1]
    width = capacity if blocks is None else listed * _BLOCK_POSITIONS
    out = torch.empty((rows, width), dtype=torch.float32, device=q.device)
    if rows == 0 or width == 0:
        return out
    workers = max(_FEWEST_WORKERS, min(_MOST_WORKERS, _PROGRAMS // rows))
    _score[(rows, min(workers, -(-width // _TILE)))](
        q.contiguous(),
        weights.to(torch.bfloat16).contiguous(),
        req.contiguous(),
        req_to_token,
        lens.contiguous(),
        keys,
        keys.view(torch.int32),
        q if blocks is None else blocks.contiguous(),
        out,
        q if coarse is None else coarse,
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
        COPIES=0 if coarse is None else coarse.shape[1],
        TILE=_TILE,
        DOT=_DOT_TYPE,
        num_warps=_WARPS,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _block_max(  # type: ignore[no-untyped-def]
    scores_ptr, lens_ptr, out_ptr, coarse_ptr, capacity, score_stride, out_stride, COPIES: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
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
        if COPIES > 0:
            count_scores(coarse_ptr, row, highest, block < num_blocks, COPIES)


def block_maxima_live(
    scores: torch.Tensor, lens: torch.Tensor, coarse: torch.Tensor | None = None
) -> torch.Tensor:
    """fp32 [B, ceil(capacity / 8)], written for live blocks only; the newest is +inf. See reference. coarse:
    as in score_live, of the maxima.
    """
    rows, capacity = scores.shape
    out = torch.empty((rows, -(-capacity // _BLOCK_POSITIONS)), dtype=torch.float32, device=scores.device)
    if rows and capacity:
        grid = (rows, min(_MOST_WORKERS, -(-out.shape[1] // 128)))
        if coarse is not None:
            require_counts(coarse, rows)
        copies = 0 if coarse is None else coarse.shape[1]
        counts = scores if coarse is None else coarse
        strides = scores.stride(0), out.stride(0)
        _block_max[grid](scores, lens, out, counts, capacity, *strides, COPIES=copies, TILE=128)
    return out

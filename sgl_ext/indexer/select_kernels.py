"""Top-k of the live part of long score rows in Triton: exact, deterministic, ties to the lower position.

The coarse counts of score_order name the bin of the k-th value. One pass counts its 16 values and what is
above them, for each worker; a second writes what is above the k-th value, and of the values equal to it the
first few. Workers own consecutive tiles, so positions come out ascending. Work beyond a row's live length is
not done: a worker without tiles ends at once.

Example (tests/sgl_ext/indexer): scores 1 3 3 2 3 with four live and k = 3 give positions 1 2 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sgl_ext.indexer.score_order import count_scores, order_key, require_counts, zero_counts

_TILE = 1024
_WORKERS = 64  # a row; a power of two. Rows x workers programs must fill 48 SMs of a GB10 for one row already
_WARPS = 4
_COUNTS = 32  # a worker: 16 fine counts, then what is above the bin; the rest is padding


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTarget:
    """Where the slots of a selection go. out int32 [>= B, >= k] with stride 1 in a row; req [B] rows of
    req_to_token int32 [requests, tokens]; blocks int32 [B, n] where columns are those blocks' positions.
    """

    out: torch.Tensor
    req: torch.Tensor
    req_to_token: torch.Tensor
    ratio: int
    blocks: torch.Tensor | None = None


@triton.jit
def _load_order_keys(scores_ptr, row, stride, place, live):  # type: ignore[no-untyped-def]
    score = tl.load(scores_ptr + row.to(tl.int64) * stride + place, mask=place < live, other=-float("inf"))
    return order_key(score)


@triton.jit
def _highest_bin(counts, bins, need):  # type: ignore[no-untyped-def]
    """The highest bin with at least `need` in it and above (-1 where need is 0), and what is above it."""
    from_here = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0) + counts
    chosen = tl.max(tl.where((from_here >= need) & (need > 0), bins, -1), axis=0)
    return chosen, tl.sum(tl.where(bins > chosen, counts, 0), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _count_coarse(scores_ptr, lens_ptr, coarse_ptr, stride, width, COPIES: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """For scores that were not counted while they were made."""
    row = tl.program_id(0)
    live = tl.minimum(tl.load(lens_ptr + row), width).to(tl.int32)
    for tile in range(tl.program_id(1), tl.cdiv(live, TILE), tl.num_programs(1)):
        place = tile * TILE + tl.arange(0, TILE)
        score = tl.load(
            scores_ptr + row.to(tl.int64) * stride + place, mask=place < live, other=-float("inf")
        )
        count_scores(coarse_ptr, row, score, place < live, COPIES)


@triton.jit  # type: ignore[untyped-decorator]
def _count_fine(  # type: ignore[no-untyped-def]
    scores_ptr, lens_ptr, coarse_ptr, state_ptr, counts_ptr, stride, width, K, COPIES: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """counts [row, worker]; state: per row how many are taken, and how many of them from the chosen bin; then
    the chosen bins of all rows.
    """
    row, worker, workers = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    bins, fine_bins = tl.arange(0, 4096), tl.arange(0, 32)
    coarse = tl.zeros((4096,), dtype=tl.int32)
    for copy in range(COPIES):
        coarse += tl.load(coarse_ptr + (row * COPIES + copy) * 4096 + bins)
    taken = tl.minimum(K, tl.sum(coarse, axis=0))
    chosen, above_bin = _highest_bin(coarse, bins, taken)
    if worker == 0:
        tl.store(state_ptr + row * 2, taken)
        tl.store(state_ptr + row * 2 + 1, taken - above_bin)
    live = tl.minimum(tl.load(lens_ptr + row), width).to(tl.int32)
    tiles = tl.cdiv(live, TILE)
    share = tl.cdiv(tiles, workers)
    above = 0
    fine = tl.zeros((32,), dtype=tl.int32)
    for tile in range(worker * share, tl.minimum((worker + 1) * share, tiles)):
        key = _load_order_keys(scores_ptr, row, stride, tile * TILE + tl.arange(0, TILE), live)
        above += tl.sum(((key >= 0) & ((key >> 4) > chosen)).to(tl.int32), axis=0)
        fine += tl.histogram(tl.where((key >= 0) & ((key >> 4) == chosen), key & 15, 31), 32)
    counts = tl.where(fine_bins < 16, fine, tl.where(fine_bins == 16, above, 0))
    tl.store(counts_ptr + (row * workers + worker) * 32 + fine_bins, counts)
    if worker == 0:
        tl.store(state_ptr + tl.num_programs(0) * 2 + row, chosen)


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # type: ignore[no-untyped-def]
    scores_ptr, lens_ptr, state_ptr, counts_ptr, out_ptr, req_ptr, table_ptr, blocks_ptr, stride, width, K,
    out_stride, table_stride, num_blocks, SLOTS: tl.constexpr, RATIO: tl.constexpr, LISTED: tl.constexpr,
    WORKERS: tl.constexpr, OUT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, worker = tl.program_id(0), tl.program_id(1)
    out_ptr += row.to(tl.int64) * out_stride
    taken = tl.load(state_ptr + row * 2)
    need = tl.load(state_ptr + row * 2 + 1)
    chosen = tl.load(state_ptr + tl.num_programs(0) * 2 + row)
    if worker == 0:
        rest = tl.arange(0, OUT)
        tl.store(out_ptr + rest, tl.full((OUT,), -1, tl.int32), mask=(rest >= taken) & (rest < K))
    live = tl.minimum(tl.load(lens_ptr + row), width).to(tl.int32)
    tiles = tl.cdiv(live, TILE)
    share = tl.cdiv(tiles, WORKERS)
    if worker * share < tiles:
        others, bins = tl.arange(0, WORKERS), tl.arange(0, 32)
        counts = tl.load(counts_ptr + (row * WORKERS + others[:, None]) * 32 + bins[None, :])
        fine = tl.where(bins < 16, tl.sum(counts, axis=0), 0)
        low, above_low = _highest_bin(fine, bins, need)
        wanted = need - above_low
        threshold = tl.where((chosen >= 0) & (low >= 0), chosen * 16 + low, 1 << 20)
        before = others[:, None] < worker
        # Bin 16 holds what is above the coarse bin: it lies above `low` in any case.
        above = tl.sum(tl.sum(tl.where(before & (bins[None, :] > low), counts, 0), axis=1), axis=0)
        equal = tl.sum(tl.sum(tl.where(before & (bins[None, :] == low), counts, 0), axis=1), axis=0)
        if SLOTS:
            table_ptr += tl.load(req_ptr + row).to(tl.int64) * table_stride
        for tile in range(worker * share, tl.minimum((worker + 1) * share, tiles)):
            place = tile * TILE + tl.arange(0, TILE)
            key = _load_order_keys(scores_ptr, row, stride, place, live)
            is_above, is_equal = key > threshold, key == threshold
            equals = equal + tl.cumsum(is_equal.to(tl.int32), axis=0)
            is_taken = is_above | (is_equal & (equals <= wanted))
            # Those taken before this one: all above so far in the row, and as many equal ones as were wanted.
            rank = above + tl.cumsum(is_above.to(tl.int32), axis=0) + tl.minimum(equals, wanted) - 1
            is_taken = is_taken & (rank < K)
            if SLOTS:
                position = place
                if LISTED:
                    block = tl.load(blocks_ptr + row * num_blocks + place // 8, mask=is_taken, other=0)
                    position = block * 8 + place % 8
                place = tl.load(table_ptr + position.to(tl.int64) * RATIO, mask=is_taken, other=0) // RATIO
            tl.store(out_ptr + rank, place, mask=is_taken)
            above += tl.sum(is_above.to(tl.int32), axis=0)
            equal += tl.sum(is_equal.to(tl.int32), axis=0)


def select_highest_live(
    scores: torch.Tensor, lens: torch.Tensor, k: int, coarse: torch.Tensor | None = None
) -> torch.Tensor:
    """int32 [B, k] positions, ascending, -1 behind; see reference.select_highest.

    scores fp32 [B, capacity], each a bf16 value, read up to lens only (int32 or int64 [B], on the device).
    coarse: their counts, where score_live or block_maxima_live made them. Nothing waits for the GPU, and no
    shape depends on lens, so it can be captured in a CUDA graph.
    """
    out = torch.empty((scores.shape[0], k), dtype=torch.int32, device=scores.device)
    _select(scores, lens, k, coarse, out, None)
    return out


def select_slots_live(
    scores: torch.Tensor, lens: torch.Tensor, k: int, target: SlotTarget, coarse: torch.Tensor | None = None
) -> None:
    """As select_highest_live, and writes slots instead of positions: target.out[:B, :k], -1 behind."""
    if target.out.dtype != torch.int32 or target.out.stride(1) != 1 or target.req_to_token.stride(1) != 1:
        raise ValueError("out and req_to_token must have stride 1 in a row, and out must be int32.")
    if target.out.shape[0] < scores.shape[0] or target.out.shape[1] < k:
        raise ValueError(f"out must hold [{scores.shape[0]}, {k}], got {tuple(target.out.shape)}.")
    _select(scores, lens, k, coarse, target.out, target)


def _select(
    scores: torch.Tensor,
    lens: torch.Tensor,
    k: int,
    coarse: torch.Tensor | None,
    out: torch.Tensor,
    target: SlotTarget | None,
) -> None:
    if scores.dtype != torch.float32 or scores.dim() != 2 or scores.stride(1) != 1:
        raise ValueError(
            f"scores must be fp32 [B, P] with stride 1, got {scores.dtype} {tuple(scores.shape)}."
        )
    rows, width = scores.shape
    if lens.shape != (rows,):
        raise ValueError(f"lens must have one length a row ({rows}), got {tuple(lens.shape)}.")
    if rows == 0 or k == 0:
        return
    if width == 0:
        out[:rows, :k] = -1
        return
    grid, stride = (rows, _WORKERS), scores.stride(0)
    if coarse is None:
        coarse = zero_counts(rows, scores.device)
        _count_coarse[grid](scores, lens, coarse, stride, width, COPIES=coarse.shape[1], TILE=_TILE)
    require_counts(coarse, rows)
    copies = coarse.shape[1]
    state = torch.empty((3, rows), dtype=torch.int32, device=scores.device)
    counts = torch.empty((rows, _WORKERS, _COUNTS), dtype=torch.int32, device=scores.device)
    _count_fine[grid](
        scores, lens, coarse, state, counts, stride, width, k, COPIES=copies, TILE=_TILE, num_warps=_WARPS
    )
    blocks = None if target is None else target.blocks
    _write[grid](
        scores,
        lens,
        state,
        counts,
        out,
        lens if target is None else target.req.contiguous(),
        lens if target is None else target.req_to_token,
        lens if blocks is None else blocks.contiguous(),
        stride,
        width,
        k,
        out.stride(0),
        0 if target is None else target.req_to_token.stride(0),
        0 if blocks is None else blocks.shape[1],
        SLOTS=target is not None,
        RATIO=1 if target is None else target.ratio,
        LISTED=blocks is not None,
        WORKERS=_WORKERS,
        OUT=triton.next_power_of_2(k),
        TILE=_TILE,
        num_warps=_WARPS,
    )

"""Top-k of the live part of long score rows in Triton: exact, deterministic, ties to the lower position.

A score is a bf16 value in fp32, so its upper 16 bits order it. Two histograms of 256 bins find the k-th
value; then each worker counts and writes what it has above it, and of the values equal to it the first few.
Workers own consecutive tiles, so positions come out ascending. Work beyond a row's live length is not done: a
worker without tiles ends at once. Integer atomics only, so the result does not depend on their order.

Example (tests/sgl_ext/indexer): scores 1 3 3 2 3 with four live and k = 3 give positions 1 2 3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 1024
_WORKERS = 64  # a row; a power of two. Rows x workers programs must fill 48 SMs of a GB10 for one row already
_BINS = 256


@triton.jit
def _load_keys(scores_ptr, row, stride, place, live):  # type: ignore[no-untyped-def]
    """Order-preserving 16-bit keys; -1 where there is no candidate. -0 counts as 0."""
    score = tl.load(scores_ptr + row.to(tl.int64) * stride + place, mask=place < live, other=-float("inf"))
    score = tl.where(score == 0.0, 0.0, score)
    upper = (score.to(tl.int32, bitcast=True) >> 16) & 0xFFFF
    key = tl.where(upper >= 0x8000, 0xFFFF - upper, upper + 0x8000)
    return tl.where(score > -float("inf"), key, -1)


@triton.jit  # type: ignore[untyped-decorator]
def _histogram(  # type: ignore[no-untyped-def]
    scores_ptr, lens_ptr, state_ptr, hist_ptr, stride, width, LOW: tl.constexpr, TILE: tl.constexpr
):
    """Adds this worker's tiles to the row's 256 bins: of the key's high byte, or (LOW) of its low byte where
    the high byte is the chosen one.
    """
    row = tl.program_id(0)
    live = tl.minimum(tl.load(lens_ptr + row), width).to(tl.int32)
    bins = tl.arange(0, 512)
    counts = tl.zeros((512,), dtype=tl.int32)
    chosen = tl.load(state_ptr + row * 4)
    for tile in range(tl.program_id(1), tl.cdiv(live, TILE), tl.num_programs(1)):
        key = _load_keys(scores_ptr, row, stride, tile * TILE + tl.arange(0, TILE), live)
        if LOW:
            value = tl.where((key >= 0) & ((key >> 8) == chosen), key & 0xFF, 511)
        else:
            value = tl.where(key >= 0, key >> 8, 511)
        counts += tl.histogram(value, 512)
    tl.atomic_add(hist_ptr + row * 256 + bins, counts, mask=(bins < 256) & (counts > 0), sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _pick_bin(hist_ptr, state_ptr, K, LOW: tl.constexpr):  # type: ignore[no-untyped-def]
    """The highest bin with at least `need` values in it and above; state: high byte, need, low byte, need."""
    row = tl.program_id(0)
    bins = tl.arange(0, 256)
    counts = tl.load(hist_ptr + row * 256 + bins)
    total = tl.sum(counts, axis=0)
    from_here = total - tl.cumsum(counts, axis=0) + counts
    need = K
    if LOW:
        need = tl.load(state_ptr + row * 4 + 1)
    need = tl.minimum(need, total)
    chosen = tl.max(tl.where((from_here >= need) & (need > 0), bins, -1), axis=0)
    above = tl.sum(tl.where(bins > chosen, counts, 0), axis=0)
    place = row * 4 + (2 if LOW else 0)
    tl.store(state_ptr + place, chosen)
    tl.store(state_ptr + place + 1, need - above)


@triton.jit
def _compare(state_ptr, row, key):  # type: ignore[no-untyped-def]
    """Above the k-th value, and equal to it; a row without candidates has neither."""
    high = tl.load(state_ptr + row * 4)
    low = tl.load(state_ptr + row * 4 + 2)
    threshold = tl.where((high >= 0) & (low >= 0), high * 256 + low, 1 << 20)
    return key > threshold, key == threshold


@triton.jit  # type: ignore[untyped-decorator]
def _count(scores_ptr, lens_ptr, state_ptr, counts_ptr, stride, width, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    row, worker, workers = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    live = tl.minimum(tl.load(lens_ptr + row), width).to(tl.int32)
    share = tl.cdiv(tl.cdiv(live, TILE), workers)
    above, equal = 0, 0
    for tile in range(worker * share, tl.minimum((worker + 1) * share, tl.cdiv(live, TILE))):
        key = _load_keys(scores_ptr, row, stride, tile * TILE + tl.arange(0, TILE), live)
        is_above, is_equal = _compare(state_ptr, row, key)
        above += tl.sum(is_above.to(tl.int32), axis=0)
        equal += tl.sum(is_equal.to(tl.int32), axis=0)
    tl.store(counts_ptr + (row * workers + worker) * 2, above)
    tl.store(counts_ptr + (row * workers + worker) * 2 + 1, equal)


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # type: ignore[no-untyped-def]
    scores_ptr, lens_ptr, state_ptr, counts_ptr, out_ptr, stride, width, K, WORKERS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    row, worker = tl.program_id(0), tl.program_id(1)
    live = tl.minimum(tl.load(lens_ptr + row), width).to(tl.int32)
    share = tl.cdiv(tl.cdiv(live, TILE), WORKERS)
    others = tl.arange(0, WORKERS)
    before = others < worker
    counts = counts_ptr + (row * WORKERS + others) * 2
    above = tl.sum(tl.load(counts, mask=before, other=0), axis=0)
    equal = tl.sum(tl.load(counts + 1, mask=before, other=0), axis=0)
    wanted = tl.load(state_ptr + row * 4 + 3)
    for tile in range(worker * share, tl.minimum((worker + 1) * share, tl.cdiv(live, TILE))):
        place = tile * TILE + tl.arange(0, TILE)
        key = _load_keys(scores_ptr, row, stride, place, live)
        is_above, is_equal = _compare(state_ptr, row, key)
        equals = equal + tl.cumsum(is_equal.to(tl.int32), axis=0)
        taken = is_above | (is_equal & (equals <= wanted))
        # Those taken before this one: all above it in the row so far, and as many equal ones as were wanted.
        rank = above + tl.cumsum(is_above.to(tl.int32), axis=0) + tl.minimum(equals, wanted) - 1
        tl.store(out_ptr + row * K + rank, place, mask=taken & (rank < K))
        above += tl.sum(is_above.to(tl.int32), axis=0)
        equal += tl.sum(is_equal.to(tl.int32), axis=0)


def select_highest_live(scores: torch.Tensor, lens: torch.Tensor, k: int) -> torch.Tensor:
    """int32 [B, k] positions, ascending, -1 behind; see reference.select_highest.

    scores fp32 [B, capacity], each a bf16 value, read up to lens only (int32 or int64 [B], on the device).
    Nothing waits for the GPU, and shapes do not depend on lens, so it can be captured in a CUDA graph.
    """
    if scores.dtype != torch.float32 or scores.dim() != 2 or scores.stride(1) != 1:
        raise ValueError(
            f"scores must be fp32 [B, P] with stride 1, got {scores.dtype} {tuple(scores.shape)}."
        )
    rows, width = scores.shape
    if lens.shape != (rows,):
        raise ValueError(f"lens must have one length a row ({rows}), got {tuple(lens.shape)}.")
    out = torch.full((rows, k), -1, dtype=torch.int32, device=scores.device)
    if rows == 0 or width == 0:
        return out
    hist = torch.zeros((2, rows, _BINS), dtype=torch.int32, device=scores.device)
    state = torch.zeros((rows, 4), dtype=torch.int32, device=scores.device)
    counts = torch.empty((rows, _WORKERS, 2), dtype=torch.int32, device=scores.device)
    grid, stride = (rows, _WORKERS), scores.stride(0)
    for low in (False, True):
        _histogram[grid](scores, lens, state, hist[int(low)], stride, width, LOW=low, TILE=_TILE)
        _pick_bin[(rows,)](hist[int(low)], state, k, LOW=low)
    _count[grid](scores, lens, state, counts, stride, width, TILE=_TILE)
    _write[grid](scores, lens, state, counts, out, stride, width, k, WORKERS=_WORKERS, TILE=_TILE)
    return out

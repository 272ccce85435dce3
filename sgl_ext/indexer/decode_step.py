"""One decode step of an index layer on live lengths: score, publish or follow blocks, select, write.

The contract is SGLang's dense form (v41_indexer/dense_blocks.py, full_topk.py): out_page_indices has the
slots of the selected positions, ascending by position, -1 behind. What differs is the cost: nothing is as
long as the context's capacity but the score buffer, of which only live entries are touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sgl_ext.indexer.score_kernels import block_maxima_live, score_live
from sgl_ext.indexer.score_order import zero_counts
from sgl_ext.indexer.select_kernels import SlotTarget, select_highest_live, select_slots_live


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """scores [B, columns] and their coarse counts; lens [B] int32 live columns, all of them where columns are
    positions of listed blocks.
    """

    scores: torch.Tensor
    coarse: torch.Tensor
    lens: torch.Tensor


def score_and_count(
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
) -> StepScores:
    """Arguments as score_live takes them."""
    coarse = zero_counts(len(lens), lens.device)
    scores = score_live(
        q,
        weights,
        req,
        req_to_token,
        lens,
        keys,
        capacity=capacity,
        ratio=ratio,
        blocks=blocks,
        coarse=coarse,
    )
    columns = lens if blocks is None else torch.full_like(lens, scores.shape[1])
    return StepScores(scores=scores, coarse=coarse, lens=columns)


def score_step(
    inputs: Any, pool: Any, req_to_token: torch.Tensor, blocks: torch.Tensor | None = None
) -> StepScores | None:
    """Scores of one query row per request. None where there is no row or nothing can be visible."""
    ratio, position = inputs.compress_ratio, inputs.positions
    capacity = min(inputs.paged_metadata.max_compressed_seq_len, req_to_token.shape[1] // ratio)
    inputs.reset_outputs()
    if position.shape[0] == 0 or capacity == 0:
        return None
    lens = ((position + 1) // ratio).to(torch.int32)
    return score_and_count(
        inputs.indexer.queries(inputs.q_lora, inputs.freqs_cis[position]),
        inputs.indexer.head_weights(inputs.x),
        inputs.req_rows,
        req_to_token,
        lens,
        pool.get_index_k_with_scale_buffer(inputs.layer_id),
        capacity=capacity,
        ratio=ratio,
        blocks=blocks,
    )


def highest_blocks(scores: torch.Tensor, lens: torch.Tensor, count: int) -> torch.Tensor:
    """int32 [B, n] ids of the blocks of 8 with the highest scores, ascending, the newest among them."""
    coarse = zero_counts(len(lens), lens.device)
    maxima = block_maxima_live(scores, lens, coarse)
    return select_highest_live(maxima, (lens + 7) // 8, min(count, maxima.shape[1]), coarse)


def select_slots(
    step: StepScores,
    out: torch.Tensor,
    req: torch.Tensor,
    req_to_token: torch.Tensor,
    *,
    topk: int,
    ratio: int,
    blocks: torch.Tensor | None = None,
) -> None:
    """The slots of the highest scores into out [>= B, >= k], ascending by position, -1 behind up to k, which
    is topk or all columns. Ascending blocks make ascending columns ascending positions.
    """
    target = SlotTarget(out=out, req=req, req_to_token=req_to_token, ratio=ratio, blocks=blocks)
    select_slots_live(step.scores, step.lens, min(topk, step.scores.shape[1]), target, step.coarse)


def publish_blocks(step: StepScores, topk_blocks: int) -> torch.Tensor:
    return highest_blocks(step.scores, step.lens, topk_blocks)


def write_selection(
    inputs: Any, step: StepScores, req_to_token: torch.Tensor, blocks: torch.Tensor | None = None
) -> None:
    """Into SGLang's output, whose other entries stay -1, as they were reset."""
    select_slots(
        step,
        inputs.out_page_indices,
        inputs.req_rows,
        req_to_token,
        topk=inputs.indexer.index_topk,
        ratio=inputs.compress_ratio,
        blocks=blocks,
    )

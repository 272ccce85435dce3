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
from sgl_ext.indexer.select_kernels import select_highest_live


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """scores [B, columns]; lens [B] int32 live columns; positions [B, columns] where columns are listed."""

    scores: torch.Tensor
    lens: torch.Tensor
    capacity: int


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
    scores = score_live(
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
    return StepScores(scores=scores, lens=lens, capacity=capacity)


def publish_blocks(step: StepScores, topk_blocks: int) -> torch.Tensor:
    """int32 [B, n] ids of the blocks of 8 with the highest scores, ascending, the newest among them."""
    maxima = block_maxima_live(step.scores, step.lens)
    return select_highest_live(maxima, (step.lens + 7) // 8, min(topk_blocks, maxima.shape[1]))


def select_all(step: StepScores, topk: int) -> torch.Tensor:
    return select_highest_live(step.scores, step.lens, min(topk, step.capacity))


def select_among_blocks(step: StepScores, blocks: torch.Tensor, topk: int) -> torch.Tensor:
    """Positions among the blocks' columns; ascending blocks make ascending columns ascending positions."""
    columns = torch.full_like(step.lens, step.scores.shape[1])
    chosen = select_highest_live(step.scores, columns, min(topk, step.scores.shape[1]))
    place = chosen.clamp_min(0).long()
    positions = blocks.gather(1, place // 8).long() * 8 + place % 8
    return torch.where(chosen >= 0, positions, -1).to(torch.int32)


def write_selection(inputs: Any, positions: torch.Tensor, req_to_token: torch.Tensor) -> None:
    """The slots of the selected positions into SGLang's output, whose other entries were reset to -1."""
    ratio = inputs.compress_ratio
    token = positions.clamp_min(0).long() * ratio
    slots = req_to_token[inputs.req_rows.long().unsqueeze(1), token] // ratio
    rows, k = positions.shape
    inputs.out_page_indices[:rows, :k] = torch.where(positions >= 0, slots, -1).to(torch.int32)

"""Tokens per verify step of one request: published ones, and what other widths would accept."""

from __future__ import annotations

import math

# Varied prompts, blocks of five: docs/results/tp4/validation-20260925-v22.txt of
# https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks
PROSE, CODE = 2.274, 3.865
PUBLISHED_BLOCK = 5


def tokens_with_block(tokens_with_five: float, block: int) -> float:
    """Tokens per step of another block, each draft token having the same chance after the one before it."""
    least, most = 0.0, 1.0
    while most - least > 1e-9:
        chance = (least + most) / 2
        if sum(chance**index for index in range(PUBLISHED_BLOCK + 1)) < tokens_with_five:
            least = chance
        else:
            most = chance
    return sum(most**index for index in range(block + 1))


def tokens_of_rows(tokens_with_five: float, rows: float) -> float:
    """Tokens per step when `rows` rows of a block are verified on average, the bonus row among them."""
    drafts = rows - 1
    below = math.floor(drafts)
    low, high = (tokens_with_block(tokens_with_five, count) for count in (below, below + 1))
    return low + (drafts - below) * (high - low)

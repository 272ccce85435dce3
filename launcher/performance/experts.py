"""How many different experts a step touches, and how unevenly expert groups share them."""

from __future__ import annotations

import math

# Mean of the largest of n standard normal values (order statistics).
_LARGEST_OF = {1: 0.0, 2: 0.5642, 3: 0.8463, 4: 1.0294, 8: 1.4236}


def distinct_experts(num_experts: int, per_row: int, independent_rows: float) -> float:
    """Expected number of different experts, rows drawing `per_row` of them without regard to one another."""
    return float(num_experts * (1 - (1 - per_row / num_experts) ** independent_rows))


def independent_rows(streams: int, live_rows: float, *, row_novelty: float, stream_novelty: float) -> float:
    """Rows that would draw as many experts if they were strangers: the rows of one block, and streams with
    the same prompt, largely draw the same ones."""
    return float(streams**stream_novelty) * (1 + (live_rows - 1) * row_novelty)


def group_imbalance(experts_touched: float, ep: int) -> float:
    """Experts of the fullest of `ep` groups over the mean: the others wait for it."""
    if ep == 1:
        return 1.0
    mean = experts_touched / ep
    return 1 + _LARGEST_OF[ep] * math.sqrt(mean * (1 - 1 / ep)) / mean

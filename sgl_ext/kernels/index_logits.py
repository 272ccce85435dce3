"""Scores of the lightning indexer for one query row against its visible index keys.

B rows, H index heads, L positions, D = 128.
"""

from __future__ import annotations

import torch


def score_keys(q_BHD: torch.Tensor, weights_BH: torch.Tensor, keys_BLD: torch.Tensor) -> torch.Tensor:
    """fp32 [B, L]: sum over heads of weight * relu(q . k); keys_BLD may have one B for all rows.

    With bf16 queries it is rounded where the GPU kernel rounds: each dot, each weighted dot, the sum.
    """
    dtype = q_BHD.dtype
    dots = torch.einsum("bhd,bld->bhl", q_BHD.float(), keys_BLD.float().expand(q_BHD.shape[0], -1, -1))
    dots = dots.to(dtype).float().relu()
    weighted = (dots * weights_BH.float().unsqueeze(-1)).to(dtype).float()
    return weighted.sum(1).to(dtype).float()

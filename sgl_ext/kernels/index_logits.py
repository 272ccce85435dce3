"""Scores of the lightning indexer for one query row against its visible index keys.

B rows, H index heads, L positions, D = 128.
"""

from __future__ import annotations

import torch


def score_keys(q_BHD: torch.Tensor, weights_BH: torch.Tensor, keys_BLD: torch.Tensor) -> torch.Tensor:
    """fp32 [B, L]: sum over heads of weight * relu(q . k), rounded to bf16 where the GPU kernel rounds."""
    dots = torch.einsum("bhd,bld->bhl", q_BHD.float(), keys_BLD.float()).to(torch.bfloat16).float()
    weighted = (dots.relu() * weights_BH.float().unsqueeze(-1)).to(torch.bfloat16).float()
    return weighted.sum(1).to(torch.bfloat16).float()

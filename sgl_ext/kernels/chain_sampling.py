"""Speculative sampling of a chain (https://arxiv.org/abs/2302.01318) in PyTorch.

B requests, N draft tokens each, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch


def accept_chain(
    candidates_BxN1: torch.Tensor,
    target_BxN1xV: torch.Tensor,
    draft_BxNxV: torch.Tensor,
    coins_BxN: torch.Tensor,
    final_coins_B: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accepted draft tokens int64 [B], and the token after them int64 [B]: drawn from what the target has
    more of than the draft, or from the target where all were accepted.

    candidates: the last committed token, then the draft. Example: target (0.5, 0.5), draft (1, 0), drafted 0,
    coin 0.7: 0.7 * 1 >= 0.5, refused; the rest is (0, 0.5), so the token is 1.
    """
    batch, num_draft = coins_BxN.shape
    drafted = candidates_BxN1[:, 1:].long().unsqueeze(-1)
    target_p = target_BxN1xV[:, :num_draft].gather(-1, drafted).squeeze(-1)
    draft_p = draft_BxNxV.gather(-1, drafted).squeeze(-1)
    is_accepted = (draft_p > 0) & (draft_p <= 1) & (coins_BxN * draft_p < target_p)
    length = is_accepted.int().cumprod(dim=1).sum(dim=1).long()
    rows = torch.arange(batch)
    weights = target_BxN1xV[rows, length].double()
    refused = length < num_draft
    known = draft_BxNxV[rows, length.clamp_max(num_draft - 1)].double()
    weights = torch.where(refused.unsqueeze(1), (weights - known).clamp_min(0), weights)
    cumulative = weights.cumsum(dim=1)
    goal = final_coins_B.double().unsqueeze(1) * cumulative[:, -1:]
    final = (cumulative <= goal).sum(dim=1).clamp_max(weights.shape[1] - 1)
    return length, final

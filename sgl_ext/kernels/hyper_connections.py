"""Manifold-constrained hyper-connections (mHC) in PyTorch: mixing coefficients and the stream sum.

T tokens, C residual streams, M = (2 + C) * C mixing values.
"""

from __future__ import annotations

import torch


def split_mixes(
    mixes_TM: torch.Tensor,
    scale_3: torch.Tensor,
    base_M: torch.Tensor,
    num_streams: int,
    iterations: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre [T, C], post [T, C], comb [T, C, C]) from raw mixing values.

    pre is a sigmoid plus eps, post twice a sigmoid, comb a row softmax plus eps brought to a doubly
    stochastic matrix by `iterations` Sinkhorn rounds, the first of which only divides by the column sums.
    """
    count = num_streams
    pre = torch.sigmoid(mixes_TM[:, :count] * scale_3[0] + base_M[:count]) + eps
    post = 2 * torch.sigmoid(mixes_TM[:, count : 2 * count] * scale_3[1] + base_M[count : 2 * count])
    comb = (mixes_TM[:, 2 * count :] * scale_3[2] + base_M[2 * count :]).view(-1, count, count)
    comb = comb.softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


def sum_streams(streams_TCh: torch.Tensor, pre_TC: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[T, h]: the streams weighted by pre, summed in fp32, rounded once."""
    return torch.einsum("tch,tc->th", streams_TCh.float(), pre_TC.float()).to(dtype)

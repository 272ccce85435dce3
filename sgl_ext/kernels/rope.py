"""Rotary embedding of adjacent pairs, in fp32, rounded once to the input's type.

T tokens, H heads, R rotated width, P table positions.
"""

from __future__ import annotations

import torch


def rotate_pairs(x_THR: torch.Tensor, table_PR: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
    """Rotates features 2i and 2i + 1 by the complex table's entry i at each token's position.

    table_PR: complex64 [P, R // 2]. Pass its conjugate for the inverse rotation. Returns a new tensor.

    >>> one = torch.tensor([[[1.0, 0.0]]])
    >>> rotate_pairs(one, torch.tensor([[1j]]), torch.tensor([0]))
    tensor([[[0., 1.]]])
    """
    pairs = torch.view_as_complex(x_THR.float().unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * table_PR[positions_T].view(x_THR.shape[0], *([1] * (x_THR.ndim - 2)), -1)
    return torch.view_as_real(turned).flatten(-2).to(x_THR.dtype)

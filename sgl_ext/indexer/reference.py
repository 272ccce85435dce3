"""Index scores and their top-k in plain PyTorch, with the tie rule written out.

B rows, H index heads, P positions, D = 128. Scores are bf16 values held in fp32, so ties are common. Of equal
scores the lower position is taken: what SGLang's torch.topk does on CUDA, whose radix selection collects the
values above the k-th first and then those equal to it in order of index.
"""

from __future__ import annotations

import torch

BLOCK_POSITIONS = 8


def select_highest(scores_BP: torch.Tensor, lens_B: torch.Tensor, k: int) -> torch.Tensor:
    """int32 [B, k]: the positions of the k highest scores among each row's first len, ascending, -1 behind.

    A score of -inf is no candidate.

    >>> select_highest(torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]]), torch.tensor([4]), 3)
    tensor([[1, 2, 3]], dtype=torch.int32)
    >>> select_highest(torch.tensor([[3.0, 3.0, 3.0]]), torch.tensor([3]), 2)
    tensor([[0, 1]], dtype=torch.int32)
    """
    rows, width = scores_BP.shape
    hidden = torch.arange(width) >= lens_B.cpu().unsqueeze(1)
    scores = scores_BP.cpu().masked_fill(hidden, -torch.inf)
    order = scores.sort(dim=1, descending=True, stable=True)
    taken = order.indices[:, :k].masked_fill(order.values[:, :k] == -torch.inf, width)
    taken = taken.sort(dim=1).values
    out = torch.full((rows, k), -1, dtype=torch.int32)
    out[:, : taken.shape[1]] = torch.where(taken < width, taken, -1).to(torch.int32)
    return out.to(scores_BP.device)


def block_maxima(scores_BP: torch.Tensor, lens_B: torch.Tensor) -> torch.Tensor:
    """fp32 [B, ceil(P / 8)]: each block's highest live score; the newest block +inf, so that it is kept."""
    width = scores_BP.shape[1]
    hidden = torch.arange(width, device=scores_BP.device) >= lens_B.unsqueeze(1)
    scores = scores_BP.masked_fill(hidden, -torch.inf)
    padded = torch.nn.functional.pad(scores, (0, -width % BLOCK_POSITIONS), value=-torch.inf)
    maxima = padded.unflatten(1, (-1, BLOCK_POSITIONS)).amax(-1)
    newest = (lens_B.unsqueeze(1) - 1) // BLOCK_POSITIONS
    return maxima.masked_fill(torch.arange(maxima.shape[1], device=scores.device) == newest, torch.inf)

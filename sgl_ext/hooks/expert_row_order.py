"""moe_align_block_size: an expert's tokens in ascending order, whatever order atomic additions gave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind

_ORDERED_BELOW_PAIRS, _ORDERED_UP_TO_EXPERTS = 1024, 64  # SGLang's other kernel keeps the order by itself
_BEYOND_EXPERTS = 1 << 20


def align_in_order(
    original: Callable[..., None],
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> None:
    """The same blocks; within each run of blocks of one expert the pairs are sorted in place."""
    original(
        topk_ids, num_experts, block_size, sorted_token_ids, expert_ids, num_tokens_post_pad, *args, **kwargs
    )
    if topk_ids.numel() < _ORDERED_BELOW_PAIRS and num_experts <= _ORDERED_UP_TO_EXPERTS:
        return
    order_pairs(sorted_token_ids, expert_ids, num_tokens_post_pad, block_size, topk_ids.numel())


def order_pairs(
    pairs: torch.Tensor, expert_ids: torch.Tensor, total: torch.Tensor, block_size: int, num_pairs: int
) -> None:
    """Padding (num_pairs) stays behind each expert's pairs; what lies past total stays behind everything.

    >>> pairs = torch.tensor([3, 0, 9, 9, 2, 1, 9, 9, 7, 7])
    >>> order_pairs(pairs, torch.tensor([0, 1, 5]), torch.tensor([8]), 4, 9)
    >>> pairs.tolist()
    [0, 3, 9, 9, 1, 2, 9, 9, 9, 9]
    """
    place = torch.arange(pairs.numel(), device=pairs.device)
    live = place < total[0]
    expert = expert_ids[(place // block_size).clamp_max(expert_ids.numel() - 1)].long()
    expert = torch.where(live, expert, _BEYOND_EXPERTS)  # what lies past total was never written
    key = (expert + 1) * (num_pairs + 1) + torch.where(live, pairs.long(), num_pairs)
    pairs.copy_((key.sort().values % (num_pairs + 1)).to(pairs.dtype))


HOOK = Hook(
    target="sglang.kernels.ops.moe.moe_align.moe_align_block_size",
    kind=HookKind.AROUND,
    replacement=align_in_order,
    reason="from 1,024 pairs on SGLang orders an expert's tokens by atomic additions, and Marlin rounds a "
    "token differently where it lands in another block: the same prompt gives other replies",
    sglang_versions=("0.5.23",),
    fingerprint="5edc45835e6c5182",
    remove_when="SGLang's kernel orders the tokens of an expert",
)

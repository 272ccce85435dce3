"""moe_align_block_size: an expert's tokens in ascending order, whatever order atomic additions gave them.

SGLang's function hands the work to one of three kernels; only the Triton one of small batches keeps the order
by itself. Marlin takes the JIT one without expert groups and sgl_kernel's with them, so the hook is on the
function in front of all three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind

_SMALL_PAIRS, _SMALL_FROM_BUCKETS = 64, 65  # where SGLang takes the kernel that keeps the order
_BEYOND_EXPERTS = 1 << 20
_PROBE_TOKENS = 2048

Aligned = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def align_in_order(
    original: Callable[..., Aligned],
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    ignore_invalid_expert: bool = False,
    *,
    return_inactive_prefix_count: bool = False,
    pad_expert_ids: bool = False,
) -> Aligned:
    """The same blocks; within each run of blocks of one expert the pairs are sorted in place.

    topk_ids [T, K]: -1 where an expert is another rank's; those pairs come first, in blocks of expert -1.
    """
    pairs, expert_ids, total = original(
        topk_ids,
        block_size,
        num_experts,
        ignore_invalid_expert,
        return_inactive_prefix_count=return_inactive_prefix_count,
        pad_expert_ids=pad_expert_ids,
    )
    is_small = topk_ids.numel() <= _SMALL_PAIRS and num_experts + 1 >= _SMALL_FROM_BUCKETS
    if not is_small or ignore_invalid_expert or pad_expert_ids:
        order_pairs(pairs, expert_ids, total, block_size, topk_ids.numel())
    return pairs, expert_ids, total


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


def find_disorder(topk_ids: torch.Tensor, aligned: Aligned, block_size: int) -> str | None:
    """What is wrong with an alignment of topk_ids [T, K], or None: every block holds pairs of its expert
    (-1: of other ranks) in ascending order, padding last, and every pair of a local expert is there once.
    """
    pairs, expert_ids, total = (part.cpu() for part in aligned)
    ids = topk_ids.flatten().cpu()
    num_pairs, end = ids.numel(), int(total[0])
    pairs = pairs[:end].long()
    expert = expert_ids[: end // block_size].long().repeat_interleave(block_size)
    same = expert[1:] == expert[:-1]
    fallen = same & (pairs[1:] <= pairs[:-1]) & (pairs[1:] != num_pairs)
    if fallen.any():
        place = int(fallen.nonzero()[0, 0])
        return (
            f"pair {int(pairs[place + 1])} of expert {int(expert[place])} after pair {int(pairs[place])} "
            f"({int(fallen.sum())} of {num_pairs} pairs out of order)"
        )
    real = pairs < num_pairs
    if not torch.equal(ids[pairs[real]].long(), expert[real]):
        return "pairs in blocks of another expert"
    wanted = int((ids >= 0).sum())
    seen = int((expert[real] >= 0).sum())
    return None if seen == wanted else f"{seen} pairs of local experts instead of {wanted}"


def find_unordered_rows(scheduler: Any) -> str | None:
    """Asks the function that Marlin's MoE imports at each call, in the form that this rank's Marlin uses and
    with ids like this rank's. Only where Marlin was chosen: no other backend aligns rows.
    """
    from sgl_ext.experts.boot_choice import chosen
    from sgl_ext.experts.check_cases import draw_call

    choice = chosen()
    if choice is None or choice.candidate.name != "marlin":
        return None
    import sglang.srt.layers.moe.fused_moe_triton as imported_by_marlin

    device, shape = scheduler.tp_worker.model_runner.device, choice.shape
    call = draw_call(
        shape, _PROBE_TOKENS, dtype=torch.bfloat16, device=torch.device(device), limit=None, seed=20251130
    )
    has_groups = shape.all_experts != shape.num_experts
    for block_size in (8, 64):
        aligned = imported_by_marlin.moe_align_block_size(
            call.topk_ids, block_size, shape.all_experts, return_inactive_prefix_count=not has_groups
        )
        problem = find_disorder(call.topk_ids, aligned, block_size)
        if problem is not None:
            return f"blocks of {block_size}: {problem}"
    return None


HOOK = Hook(
    target="sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size.moe_align_block_size",
    kind=HookKind.AROUND,
    replacement=align_in_order,
    reason="SGLang orders an expert's tokens by atomic additions, and Marlin rounds a token differently "
    "where it lands in another block: the same prompt gives other replies",
    sglang_versions=("0.5.23",),
    fingerprint="6f09229ee755071a",
    remove_when="SGLang's kernels order the tokens of an expert",
    check_effect=find_unordered_rows,
)

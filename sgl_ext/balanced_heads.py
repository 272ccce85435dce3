"""Attention heads for a number of ranks that does not divide them: whole groups of zero heads at the end.

64 heads in 8 groups become 72 in 9 for 3 ranks, that is 24, 24 and 16 real heads. A zero head asks with a
zero query and its output meets zero columns of wo_b, so the sum over ranks is unchanged, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_ONE_E8M0 = 127  # a zero weight's scale is 1.0: denormal scales send kernels to slow paths


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPlan:
    """Real and padded sizes; groups divide the heads evenly before and after."""

    heads: int
    groups: int
    padded_heads: int
    padded_groups: int

    @property
    def is_padded(self) -> bool:
        return self.padded_groups != self.groups


def plan_heads(heads: int, groups: int, num_ranks: int) -> HeadPlan:
    """The fewest whole groups that num_ranks divides."""
    padded_groups = -(-groups // num_ranks) * num_ranks
    return HeadPlan(
        heads=heads,
        groups=groups,
        padded_heads=heads // groups * padded_groups,
        padded_groups=padded_groups,
    )


def pad_config(config: Any, num_ranks: int) -> None:
    """Sets the padded sizes on a model config and keeps the real ones beside them; again changes nothing."""
    if hasattr(config, "unpadded_o_groups"):
        return
    plan = plan_heads(config.num_attention_heads, config.o_groups, num_ranks)
    config.unpadded_num_attention_heads, config.unpadded_o_groups = plan.heads, plan.groups
    config.num_attention_heads, config.o_groups = plan.padded_heads, plan.padded_groups


def padded_plan(config: Any) -> HeadPlan:
    """The plan that pad_config carried out on this config."""
    return HeadPlan(
        heads=config.unpadded_num_attention_heads,
        groups=config.unpadded_o_groups,
        padded_heads=config.num_attention_heads,
        padded_groups=config.o_groups,
    )


def pad_stream(
    tensors: Iterable[tuple[str, torch.Tensor]], plan: HeadPlan
) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint's tensors with wq_b, wo_a, wo_b and attn_sink of every layer and draft stage padded."""
    for name, tensor in tensors:
        yield name, pad_tensor(name, tensor, plan)


def pad_tensor(name: str, tensor: torch.Tensor, plan: HeadPlan) -> torch.Tensor:
    """The tensor, padded where its name says that it is split by heads or groups; scales with 1.0."""
    if ".indexer." in name:  # the indexer's heads are replicated on every rank
        return tensor
    if name.endswith(("attn.attn_sink", "attn.wq_b.weight", "attn.wq_b.scale")):
        return _grow(name, tensor, 0, plan.heads, plan.padded_heads)
    if name.endswith(("attn.wo_a.weight", "attn.wo_a.scale")):
        return _grow(name, tensor, 0, plan.groups, plan.padded_groups)
    if name.endswith(("attn.wo_b.weight", "attn.wo_b.scale")):
        return _grow(name, tensor, 1, plan.groups, plan.padded_groups)
    return tensor


def _grow(name: str, tensor: torch.Tensor, dim: int, real: int, padded: int) -> torch.Tensor:
    length = tensor.shape[dim]
    if length % real:
        raise ValueError(f"{name} must split into {real} parts along dimension {dim}, got {length}.")
    shape = list(tensor.shape)
    shape[dim] = length // real * (padded - real)
    # torch.cat has no float8 form; the bytes are what is padded.
    raw = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    fill = _ONE_E8M0 if name.endswith(".scale") else 0
    return torch.cat([raw, raw.new_full(shape, fill)], dim=dim).view(tensor.dtype)

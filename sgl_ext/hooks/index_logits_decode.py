"""fp4_index_logits_decode: the indexer's scores of one decode row."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.index_logits import score_keys


def score_slots(
    q: torch.Tensor,
    weights: torch.Tensor,
    slots: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor,
    page_size: int,
) -> torch.Tensor:
    """fp32 [B, L] over the visible positions, -inf past each row's length.

    L is SGLang's bound for the context; only as many positions as the longest row has are computed.
    """
    longest = int(lens.max())
    out = torch.full(slots.shape, -torch.inf)
    if longest == 0:
        return out
    keys = _load_keys(table, slots[:, :longest], page_size)
    scores = score_keys(q, weights, keys)
    hidden = torch.arange(longest) >= lens.unsqueeze(1)
    out[:, :longest] = scores.masked_fill(hidden, -torch.inf)
    return out


def _load_keys(table: torch.Tensor, slots: torch.Tensor, page_size: int) -> torch.Tensor:
    from sglang.srt.layers.quantization.fp8 import DSV4_DEQUANT_FP4_TABLE

    from sgl_ext.kernels.index_key_slots import load_keys

    return load_keys(table, slots, page_size, DSV4_DEQUANT_FP4_TABLE)


HOOK = Hook(
    target="sglang.kernels.ops.attention.dsv4.fp4_indexer.fp4_index_logits_decode",
    kind=HookKind.REPLACE,
    replacement=score_slots,
    reason="a Triton kernel",
    sglang_versions=("0.5.23",),
    fingerprint="3ad02e4bd9904054",
    remove_when="SGLang has a CPU form of this kernel",
)

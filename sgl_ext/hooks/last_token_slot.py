"""get_last_loc: the slot of each request's last token, where SGLang would start a Triton kernel."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind


def find_last_slots(
    req_to_token: torch.Tensor, req_pool_indices_tensor: torch.Tensor, prefix_lens_tensor: torch.Tensor
) -> torch.Tensor:
    """[B] slots, -1 for a request without tokens."""
    slots = req_to_token[req_pool_indices_tensor.long(), (prefix_lens_tensor - 1).clamp_min(0).long()]
    return torch.where(prefix_lens_tensor > 0, slots.to(prefix_lens_tensor.dtype), -1)


HOOK = Hook(
    target="sglang.srt.mem_cache.allocation.get_last_loc",
    kind=HookKind.REPLACE,
    replacement=find_last_slots,
    reason="it chooses PyTorch by the attention backend's name, and V4.1's is dsv4",
    sglang_versions=("0.5.23",),
    fingerprint="b14bba7a1b96ac12",
    remove_when="get_last_loc chooses by device",
)

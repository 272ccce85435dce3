"""assign_extend_cache_locs_func: the slots of verify windows of different lengths."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind


def gather_ragged_slots(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: object,
) -> torch.Tensor:
    """int64 [batch_size * draft_token_num]: request after request without gaps, zeros behind the last."""
    out = torch.zeros(batch_size * draft_token_num, dtype=torch.int64)
    place = 0
    for slot, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        out[place : place + end - start] = req_to_token[slot, start:end]
        place += end - start
    return out


HOOK = Hook(
    target="sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_func",
    kind=HookKind.REPLACE,
    replacement=gather_ragged_slots,
    reason="on the CPU it calls sgl_kernel, of which there is no CPU build",
    sglang_versions=("0.5.23",),
    fingerprint="4e21e5c8ed031dfb",
    remove_when="sgl_kernel has a CPU wheel",
)

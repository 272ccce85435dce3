"""assign_req_to_token_pool_func: note the slots that a decode step got, per request."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind


def note_slots(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """Row r of the batch takes the next end - start of out_cache_loc as its positions start to end."""
    taken = 0
    bounds = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for request, start, end in bounds:
        count = max(end - start, 0)
        req_to_token[request, start : start + count] = out_cache_loc[taken : taken + count].to(
            req_to_token.dtype
        )
        taken += count


HOOK = Hook(
    target="sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func",
    kind=HookKind.REPLACE,
    replacement=note_slots,
    reason="on the CPU it calls sgl_kernel, of which there is no CPU build",
    sglang_versions=("0.5.23",),
    fingerprint="fdbe87d4a60cc13a",
    remove_when="sgl_kernel has a CPU wheel",
)

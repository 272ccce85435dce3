"""assign_extend_cache_locs_uniform_func: the slots of each request's verify window."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind


def gather_window_slots(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: object,
    *,
    full_v2p: torch.Tensor | None = None,
    swa_v2p: torch.Tensor | None = None,
    full_out: torch.Tensor | None = None,
    swa_out: torch.Tensor | None = None,
    page_size: int = 1,
    positions_out: torch.Tensor | None = None,
    anchor_src: torch.Tensor | None = None,
    anchor_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """int64 [B * draft_token_num]: request by request, the positions from start_offset on."""
    assert full_v2p is None and swa_v2p is None, "SGLang translates slots in this call on CUDA only"
    positions = start_offset.long().view(-1, 1) + torch.arange(draft_token_num)
    if positions_out is not None:
        positions_out.copy_(positions)
    if anchor_out is not None:
        assert anchor_src is not None
        anchor_out[:, 0].copy_(anchor_src)
    return req_to_token[req_pool_indices.long().view(-1, 1), positions].long().flatten()


HOOK = Hook(
    target="sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_uniform_func",
    kind=HookKind.REPLACE,
    replacement=gather_window_slots,
    reason="on the CPU it calls sgl_kernel, of which there is no CPU build",
    sglang_versions=("0.5.23",),
    fingerprint="f436af338700e77b",
    remove_when="sgl_kernel has a CPU wheel",
)

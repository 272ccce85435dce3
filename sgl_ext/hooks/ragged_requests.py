"""token_req_indices: which request each row of a ragged verify belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.hooks.engram_ragged_hash import place_rows


def name_requests(
    original: Callable[..., torch.Tensor], forward_batch: Any, *, num_tokens: int | None = None
) -> torch.Tensor:
    """int64 [T] request slots. Padding rows get slot 0, which no request has: they stand at position 0, where
    a verify never does, and would otherwise write into the last request's compressed keys."""
    mode = forward_batch.forward_mode
    layout = forward_batch.spec_info.ragged_verify_layout if mode.is_target_verify() else None
    if layout is None:
        return original(forward_batch, num_tokens=num_tokens)
    positions = forward_batch.positions[:num_tokens]
    row, _ = place_rows(layout.qo_indptr_device, positions.shape[0])
    slots = forward_batch.req_pool_indices.to(torch.int64)[row]
    return torch.where(positions > 0, slots, 0)


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.dsv41_sparse.token_req_indices",
    kind=HookKind.AROUND,
    replacement=name_requests,
    reason="it repeats each slot for a whole block, so V4.1's compressed attention fails in compact "
    "mode as soon as one request verifies less",
    sglang_versions=("0.5.23",),
    fingerprint="500706b8eaa745b6",
    remove_when="token_req_indices reads the ragged layout",
)

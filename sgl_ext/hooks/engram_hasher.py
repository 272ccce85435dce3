"""EngramHasher.forward: a decode or verify step's reads start as soon as its row ids exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.engram.row_service import get_row_service
from sgl_ext.hook import Hook, HookKind


def hash_and_start(
    original: Callable[..., torch.Tensor], hasher: Any, input_ids: torch.Tensor, forward_batch: Any
) -> torch.Tensor:
    """A verify whose reads are under way already gets the ids they were started with."""
    service, mode = get_row_service(), forward_batch.forward_mode
    early = service.early_start
    if mode.is_target_verify():
        begun = early.take_ids(input_ids, forward_batch)
        if begun is not None:
            return begun
    hash_ids = original(hasher, input_ids, forward_batch)
    if hash_ids.is_cuda and (mode.is_decode() or mode.is_target_verify()):
        from sgl_ext.engram.breakable_read import is_capturing_segments

        # A segment ends before the layer: there the layer reads between segments.
        if not is_capturing_segments():
            service.step_fetch.start(hash_ids)
            if mode.is_target_verify() and not early.is_hashing and torch.cuda.is_current_stream_capturing():
                early.graphs_at_hash += 1
    return hash_ids


HOOK = Hook(
    target="sglang.srt.layers.engram.EngramHasher.forward",
    kind=HookKind.AROUND,
    replacement=hash_and_start,
    reason="the fork point: row ids are final here, and the layers that use the rows come later",
    sglang_versions=("0.5.23",),
    fingerprint="cb27b9cf6906c9d7",
    remove_when="SGLang reads Engram rows from disk",
)

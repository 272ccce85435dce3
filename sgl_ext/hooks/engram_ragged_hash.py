"""EngramHasher.forward: row ids of a verify whose requests have blocks of different lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind


def hash_ragged(
    original: Callable[..., torch.Tensor], hasher: Any, input_ids: torch.Tensor, forward_batch: Any
) -> torch.Tensor:
    """As a verify of equal blocks: look-back inside a request's own rows, else its committed history, and
    nothing is committed. Equal blocks and all other modes go SGLang's way."""
    mode = forward_batch.forward_mode
    layout = forward_batch.spec_info.ragged_verify_layout if mode.is_target_verify() else None
    if layout is None or input_ids.shape[0] == 0:
        return original(hasher, input_ids, forward_batch)
    from sglang.kernels.ops.embeddings.engram_hash import MODE_EXTEND, engram_hash_ids
    from sglang.srt.managers.schedule_batch import MM_PAD_SHIFT_VALUE

    row, starts = place_rows(layout.qo_indptr_device, input_ids.shape[0])
    req_slots = forward_batch.req_pool_indices
    num_tokens = input_ids.shape[0]
    if not input_ids.is_cuda:
        hash_ids, _ = hasher._torch_hash_ids(
            input_ids,
            forward_batch.positions,
            MODE_EXTEND,
            hasher.history[req_slots],
            num_tokens,
            1,
            row,
            starts,
        )
        return hash_ids
    hash_ids, _ = engram_hash_ids(
        input_ids,
        forward_batch.positions,
        mode=MODE_EXTEND,
        history=hasher.history,
        token_map=hasher.token_map,
        multipliers=hasher.multipliers,
        primes=hasher.primes,
        offsets=hasher.offsets,
        pad_id=hasher.pad_id,
        num_real=num_tokens,
        req_slots=req_slots,
        block=1,
        row=row,
        starts=starts,
        image_token_id=hasher.image_token_id,
        mm_pad_shift=MM_PAD_SHIFT_VALUE,
    )
    return hash_ids


def place_rows(qo_indptr: torch.Tensor, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Request of each token, and where each request's tokens start; both int64, of fixed shape, without a
    look at the host: a graph replays it on lengths that SGLang stages into qo_indptr [B + 1] before.

    Example: [0, 2, 3], 4 tokens -> requests 0, 0, 1, 1; the last token is padding and joins the last request.
    """
    ends = qo_indptr[1:].to(torch.int64)
    tokens = torch.arange(num_tokens, device=qo_indptr.device)
    row = torch.searchsorted(ends, tokens, right=True).clamp_max(ends.shape[0] - 1)
    return row, qo_indptr[:-1].to(torch.int64)


HOOK = Hook(
    target="sglang.srt.layers.engram.EngramHasher.forward",
    kind=HookKind.AROUND,
    replacement=hash_ragged,
    reason="it asserts one equal block for each request, so compact verify ends the engine",
    sglang_versions=("0.5.23",),
    fingerprint="cb27b9cf6906c9d7",
    remove_when="EngramHasher takes rows from the ragged layout (sgl-project/sglang#39173)",
)

"""DsparkVerifyEpilogue._accept_static_greedy: the accept in a static graph honours the planned lengths."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind


def accept_at_most_in_graph(
    epilogue: Any, io: Any, *, verify_lens: torch.Tensor, gate: torch.Tensor, gated: bool
) -> torch.Tensor | None:
    """As SGLang's, with a cutoff. verify_lens is a buffer that every replay reads; padding rows hold 0."""
    commit_lens = epilogue._accept(
        candidates=io.candidates,
        logits=io.logits,
        draft_tokens=io.candidates[:, 1:].contiguous(),
        seq_lens=io.seq_lens,
        cutoff_verify_lens=verify_lens.clamp_min(1),
    )
    return torch.minimum(commit_lens, verify_lens.to(torch.int32)) * gate if gated else None


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_verify.DsparkVerifyEpilogue._accept_static_greedy",
    kind=HookKind.REPLACE,
    replacement=accept_at_most_in_graph,
    reason="the greedy accept that SGLang folds into a static verify graph takes no cutoff",
    sglang_versions=("0.5.23",),
    fingerprint="655434cd51f63bf4",
    remove_when="SGLang takes verify lengths from a plugin in static mode",
)

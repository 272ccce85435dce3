"""chain_speculative_sampling_triton: accept or correct a sampled draft, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.chain_sampling import accept_chain


def sample_chain(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    *,
    block_verification: bool = False,
    **_: Any,
) -> None:
    """Writes into SGLang's buffers what its kernel writes: a chain's slot i is candidate i."""
    assert not block_verification, "block verification has no CPU form"
    length, final = accept_chain(
        candidates, target_probs, draft_probs, uniform_samples, uniform_samples_for_final_sampling
    )
    accept_token_num.copy_(length)
    for row, accepted in enumerate(length.tolist()):
        slots = retrive_index[row, : accepted + 1].long()
        accept_index[row, : accepted + 1] = retrive_index[row, : accepted + 1].to(accept_index.dtype)
        predicts[slots[:-1]] = candidates[row, 1 : accepted + 1].to(predicts.dtype)
        predicts[slots[-1]] = final[row].to(predicts.dtype)


HOOK = Hook(
    target="sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton",
    kind=HookKind.REPLACE,
    replacement=sample_chain,
    reason="a Triton kernel",
    sglang_versions=("0.5.23",),
    fingerprint="405e6a077e7f13b4",
    remove_when="SGLang has a CPU form of this kernel",
)

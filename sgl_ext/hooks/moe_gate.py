"""MoEGate.forward: router logits in fp32, as on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from sgl_ext.hook import Hook, HookKind


def route_in_fp32(
    gate: Any, hidden_states: torch.Tensor, gemm_output_zero_allocator: Any = None, forward_batch: Any = None
) -> torch.Tensor:
    return F.linear(hidden_states.float(), gate.weight.float())


HOOK = Hook(
    target="sglang.srt.models.deepseek_v2.MoEGate.forward",
    kind=HookKind.REPLACE,
    replacement=route_in_fp32,
    reason="off CUDA it rounds router logits to bf16, which changes which experts are chosen",
    sglang_versions=("0.5.23",),
    fingerprint="7fc1c304c885345a",
    remove_when="MoEGate keeps fp32 logits on the CPU",
)

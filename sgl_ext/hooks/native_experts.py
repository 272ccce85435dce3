"""moe_forward_native: the routed experts, with the activation's clamp that SGLang's CPU form leaves out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.clamped_swiglu import swiglu


def run_experts(layer: Any, x: torch.Tensor, topk_output: Any, moe_runner_config: Any) -> torch.Tensor:
    """x [T, h] through each token's experts, weighted and summed in fp32, rounded once."""
    assert moe_runner_config.activation == "silu" and not moe_runner_config.apply_router_weight_on_input
    weights, experts, _ = topk_output
    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in experts.unique().tolist():
        token, choice = (experts == expert).nonzero(as_tuple=True)
        hidden = swiglu(F.linear(x[token], layer.w13_weight[expert]), moe_runner_config.swiglu_limit)
        result = F.linear(hidden, layer.w2_weight[expert]).float()
        out.index_add_(0, token, result * weights[token, choice].float().unsqueeze(-1))
    return out.to(x.dtype)


HOOK = Hook(
    target="sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
    kind=HookKind.REPLACE,
    replacement=run_experts,
    reason="SGLang's CPU form ignores swiglu_limit, so it computes another model",
    sglang_versions=("0.5.23",),
    fingerprint="53b7e13072dbf344",
    remove_when="moe_forward_native applies swiglu_limit",
)

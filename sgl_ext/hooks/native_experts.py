"""moe_forward_native: the routed experts by the backend chosen at boot, with the clamp SGLang leaves out."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.experts.boot_choice import chosen
from sgl_ext.experts.candidate import ExpertCall
from sgl_ext.experts.expert_weights import DenseExperts
from sgl_ext.hook import Hook, HookKind


def run_experts(layer: Any, x: torch.Tensor, topk_output: Any, moe_runner_config: Any) -> torch.Tensor:
    """x [T, h] through each token's experts of this rank. The layer's weights were dequantised at load."""
    assert moe_runner_config.activation == "silu" and not moe_runner_config.apply_router_weight_on_input
    choice = chosen()
    assert choice is not None, "expert_choice runs before the model is built"
    weights, ids, _ = topk_output
    call = ExpertCall(x=x, topk_ids=ids, topk_weights=weights, limit=moe_runner_config.swiglu_limit)
    return choice.candidate.run(DenseExperts(w13=layer.w13_weight, w2=layer.w2_weight), call)


HOOK = Hook(
    target="sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
    kind=HookKind.REPLACE,
    replacement=run_experts,
    reason="SGLang's CPU form ignores swiglu_limit, so it computes another model, and takes expert -1 for "
    "the last one",
    sglang_versions=("0.5.23",),
    fingerprint="53b7e13072dbf344",
    remove_when="moe_forward_native applies swiglu_limit and skips experts of other ranks",
)

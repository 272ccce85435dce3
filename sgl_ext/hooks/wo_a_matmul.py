"""_apply_wo_a_bf16_matmul: weights that are kept in FP8 are multiplied as such; others as SGLang does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.wo_a.boot_choice import describe_wo_a
from sgl_ext.wo_a.packed_layers import packed_layers


def multiply_packed(
    original: Callable[..., Any], o: torch.Tensor, wo_a: torch.Tensor, *args: Any, **how: Any
) -> Any:
    """o [T, G, D], wo_a [G, R, D] -> [T, G, R]. SGLang may ask for MXFP8 at once (fuse_mxfp8_quant), which
    its own form does for a few shapes only; bf16 is what the next layer takes from all others.
    """
    layers = packed_layers()
    packed = layers.by_address.get(wo_a.data_ptr())
    if packed is None:
        return original(o, wo_a, *args, **how)
    return layers.multiply(original, o, packed, *args, **how)


def find_other_form(scheduler: Any) -> str | None:
    """Every layer of the target holds the form that was chosen."""
    told = describe_wo_a()
    is_packed = told.get("chosen") == "fp8" and told.get("kept_bf16") is None
    wanted = torch.float8_e4m3fn if is_packed else torch.bfloat16
    for idx, layer in enumerate(scheduler.tp_worker.model_runner.model.model.layers):
        weight = layer.self_attn.wo_a.weight
        if weight.dtype != wanted:
            return f"wo_a of layer {idx} in {weight.dtype} instead of {wanted}"
        if is_packed and weight.data_ptr() not in packed_layers().by_address:
            return f"wo_a of layer {idx} at another address than when it was packed"
    return None


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4._apply_wo_a_bf16_matmul",
    kind=HookKind.AROUND,
    replacement=multiply_packed,
    reason="SGLang keeps wo_a in bf16 for blocks of 32 x 32, twice the bytes of the checkpoint in every step",
    sglang_versions=("0.5.23",),
    fingerprint="76a5bd6a497acce0",
    remove_when="SGLang multiplies wo_a in FP8 with blocks of 32 x 32 on sm_12x",
    check_effect=find_other_form,
)

"""DeepseekV4ForCausalLM.load_weights: dequantise the checkpoint on its way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from sgl_ext.dequantised_weights import dequantise_stream, widen_bf16
from sgl_ext.hook import Hook, HookKind


def load_dequantised(
    original: Callable[..., None],
    model: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    *args: Any,
    **kwargs: Any,
) -> None:
    original(model, dequantise_stream(weights), *args, **kwargs)
    widen_bf16(model, model.lm_head.weight.dtype)


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4.DeepseekV4ForCausalLM.load_weights",
    kind=HookKind.AROUND,
    replacement=load_dequantised,
    reason="the layers are bf16 (see quant_config), the checkpoint is FP8 and MXFP4",
    sglang_versions=("0.5.23",),
    fingerprint="6bccd28d470f7abd",
    remove_when="SGLang runs FP8 32 x 32 and MXFP4 weights on the CPU",
)

"""DeepseekV4ForCausalLMDSpark.load_weights: dequantise the draft stages on their way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from sgl_ext.dequantised_weights import dequantise_stream, widen_bf16
from sgl_ext.hook import Hook, HookKind


def load_dequantised(
    original: Callable[..., None],
    draft: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    *args: Any,
    **kwargs: Any,
) -> None:
    original(draft, dequantise_stream(weights), *args, **kwargs)
    widen_bf16(draft, draft.stages[0].main_proj.weight.dtype)


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark.load_weights",
    kind=HookKind.AROUND,
    replacement=load_dequantised,
    reason="the layers are bf16 (see quant_config), the checkpoint is FP8 and MXFP4",
    sglang_versions=("0.5.23",),
    fingerprint="ff5fededc231c1a7",
    remove_when="SGLang runs FP8 32 x 32 and MXFP4 weights on the CPU",
)

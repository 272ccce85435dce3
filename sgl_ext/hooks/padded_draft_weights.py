"""DeepseekV4ForCausalLMDSpark.load_weights: the draft stages' attention tensors, padded on their way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from sgl_ext.balanced_heads import pad_stream, padded_plan
from sgl_ext.hook import Hook, HookKind


def load_padded(
    original: Callable[..., None],
    model: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    *args: Any,
    **kwargs: Any,
) -> None:
    original(model, pad_stream(weights, padded_plan(model.config)), *args, **kwargs)


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4_dspark.DeepseekV4ForCausalLMDSpark.load_weights",
    kind=HookKind.AROUND,
    replacement=load_padded,
    reason="the layers have padded heads (see padded_config), the checkpoint has the real ones",
    sglang_versions=("0.5.23",),
    fingerprint="ff5fededc231c1a7",
    remove_when="SGLang pads attention heads on every device",
)

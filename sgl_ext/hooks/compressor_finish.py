"""DeepseekV41Compressor.finish: normalise the pooled latent in the model's own type."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind


def finish_in_model_dtype(compressor: Any, kv: torch.Tensor) -> torch.Tensor:
    """bf16 as on a GPU; fp32 where the engine was asked to run in fp32, which is how ranks are compared."""
    latent: torch.Tensor = compressor.norm(kv.to(compressor.wkv.weight.dtype))
    return latent


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.dsv41_sparse.DeepseekV41Compressor.finish",
    kind=HookKind.REPLACE,
    replacement=finish_in_model_dtype,
    reason="it rounds to bf16 whatever the model's type, so that an fp32 engine stops at the next projection",
    sglang_versions=("0.5.23",),
    fingerprint="982234b0b0669879",
    remove_when="finish follows the model's dtype",
)

"""mhc_combine: mHC's weighted sum of the residual streams."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.hyper_connections import sum_streams


def combine_streams(x_flat: torch.Tensor, pre: torch.Tensor, hc: int, out_dtype: torch.dtype) -> torch.Tensor:
    return sum_streams(x_flat.unflatten(1, (hc, -1)), pre, out_dtype)


HOOK = Hook(
    target="sglang.kernels.ops.layernorm.mhc.mhc_combine",
    kind=HookKind.REPLACE,
    replacement=combine_streams,
    reason="a Triton kernel",
    sglang_versions=("0.5.23",),
    fingerprint="d8f1c2884648d1de",
    remove_when="SGLang has a CPU form of this kernel",
)

"""silu_and_mul_clamp: the shared expert's activation."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.clamped_swiglu import swiglu


def write_swiglu(input: torch.Tensor, output: torch.Tensor, swiglu_limit: float) -> None:
    output.copy_(swiglu(input, swiglu_limit))


HOOK = Hook(
    target="sglang.kernels.ops.activation.silu_and_mul_clamp.silu_and_mul_clamp",
    kind=HookKind.REPLACE,
    replacement=write_swiglu,
    reason="compiled by nvcc at run time",
    sglang_versions=("0.5.23",),
    fingerprint="dc7f66a2d5c028a8",
    remove_when="SGLang has a CPU form of this kernel",
)

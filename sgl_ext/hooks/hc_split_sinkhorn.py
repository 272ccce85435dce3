"""hc_split_sinkhorn: mHC's mixing coefficients."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.hyper_connections import split_mixes


def split_sinkhorn(
    mixes: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_mult: int = 4,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pre, post, comb = split_mixes(mixes.flatten(0, 1), hc_scale, hc_base, hc_mult, sinkhorn_iters, eps)
    shape = mixes.shape[:2]
    return pre.unflatten(0, shape), post.unflatten(0, shape), comb.unflatten(0, shape)


HOOK = Hook(
    target="sglang.kernels.ops.layernorm.mhc.hc_split_sinkhorn",
    kind=HookKind.REPLACE,
    replacement=split_sinkhorn,
    reason="a TileLang kernel",
    sglang_versions=("0.5.23",),
    fingerprint="49c9bec793d5f79d",
    remove_when="SGLang has a CPU form of this kernel",
)

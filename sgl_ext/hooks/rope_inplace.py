"""fused_rope_inplace: rotate queries (and back-rotate outputs) in place."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.rope import rotate_pairs


def rotate_inplace(
    q: torch.Tensor,
    k: torch.Tensor | None,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    inverse: bool = False,
) -> None:
    table = freqs_cis.conj() if inverse else freqs_cis
    q.copy_(rotate_pairs(q, table, positions))
    if k is not None:
        k.copy_(rotate_pairs(k, table, positions))


HOOK = Hook(
    target="sglang.kernels.ops.attention.dsv4.norm_rope.fused_rope_inplace",
    kind=HookKind.REPLACE,
    replacement=rotate_inplace,
    reason="compiled by nvcc at run time",
    sglang_versions=("0.5.23",),
    fingerprint="c4fe38d373b29790",
    remove_when="SGLang has a CPU form of this kernel",
)

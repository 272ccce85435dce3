"""fused_k_norm_rope_flashmla: normalise, rotate and store the sliding window's KV row."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.kv_slots import ROTATED_DIM, store_rows
from sgl_ext.kernels.rope import rotate_pairs


def norm_rotate_store(
    kv: torch.Tensor,
    kv_weight: torch.Tensor,
    eps: float,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    kvcache: torch.Tensor,
    page_size: int,
    layout: object = None,
    q: torch.Tensor | None = None,
) -> None:
    """fp32 from the projection to the quantiser, as the GPU kernel: nothing is rounded to bf16 in between."""
    assert q is None, "only the ROCm launch rotates queries here"
    assert str(getattr(layout, "value", layout)) == "v4", f"CPU pools have the V4 layout, got {layout}"
    values = kv.float()
    values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * kv_weight.float()
    values[:, -ROTATED_DIM:] = rotate_pairs(values[:, -ROTATED_DIM:], freqs_cis, positions)
    store_rows(kvcache, out_loc, values, page_size)


HOOK = Hook(
    target="sglang.kernels.ops.attention.dsv4.norm_rope.fused_k_norm_rope_flashmla",
    kind=HookKind.REPLACE,
    replacement=norm_rotate_store,
    reason="compiled by nvcc at run time",
    sglang_versions=("0.5.23",),
    fingerprint="70a35cef07bb2931",
    remove_when="SGLang has a CPU form of this kernel",
)

"""fused_store_cache: store a compressed KV row."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.kv_slots import store_rows


def store_packed(
    input: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    page_size: int,
    type: str,
    layout: object = None,
    freqs_cis: torch.Tensor | None = None,
) -> None:
    assert type == "flashmla" and freqs_cis is None, f"V4.1 stores finished rows, got {type}"
    assert str(getattr(layout, "value", layout)) == "v4", f"CPU pools have the V4 layout, got {layout}"
    store_rows(cache, indices, input, page_size)


HOOK = Hook(
    target="sglang.kernels.ops.attention.dsv4.attn.fused_store_cache",
    kind=HookKind.REPLACE,
    replacement=store_packed,
    reason="compiled by nvcc at run time",
    sglang_versions=("0.5.23",),
    fingerprint="264ad21bc1f5453f",
    remove_when="SGLang has a CPU form of this kernel",
)

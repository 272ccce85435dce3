"""flash_mla_with_kvcache_sm120: pages of V4.1's layouts go to FlashInfer's kernels for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kv_layouts.flashinfer_attention import attend_v41
from sgl_ext.kv_layouts.packed_rows import V41


def attend(original: Callable[..., Any], **arguments: Any) -> Any:
    if arguments["k_cache"].shape[-1] != V41.bytes_per_token:
        return original(**arguments)
    return attend_v41(**arguments)


HOOK = Hook(
    target="sglang.kernels.ops.attention.flash_mla_sm120.flash_mla_with_kvcache_sm120",
    kind=HookKind.AROUND,
    replacement=attend,
    reason="its entries read 584-byte pages only",
    sglang_versions=("0.5.23",),
    fingerprint="d44e7a1c813cf45f",
    remove_when="SGLang reads the V4.1 layouts on sm_12x",
)

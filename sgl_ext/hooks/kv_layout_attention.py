"""flash_mla_with_kvcache_sm120: pages of V4.1's layouts go to FlashInfer's kernels for them, and heads are
padded to a width that there is a kernel for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.gpu_capability import kernel_heads
from sgl_ext.hook import Hook, HookKind
from sgl_ext.kv_layouts.flashinfer_attention import attend_v41, pad_heads
from sgl_ext.kv_layouts.packed_rows import V41


def attend(original: Callable[..., Any], **arguments: Any) -> Any:
    """The attention backend takes a prefill's padding off again (deepseek_v4_backend.py:4343), so 24 heads of
    three ranks come here as 24, which FlashInfer's prefill has no kernel for.
    """
    if arguments["k_cache"].shape[-1] == V41.bytes_per_token:
        return attend_v41(**arguments)
    heads = arguments["q"].shape[-2]
    width = kernel_heads(heads)
    if width == heads:
        return original(**arguments)
    padded = {
        "q": pad_heads(arguments["q"], width, dim=-2),
        "attn_sink": pad_heads(arguments["attn_sink"], width, dim=0),
    }
    output, lse = original(**(arguments | padded))
    return output[..., :heads, :], lse


HOOK = Hook(
    target="sglang.kernels.ops.attention.flash_mla_sm120.flash_mla_with_kvcache_sm120",
    kind=HookKind.AROUND,
    replacement=attend,
    reason="its entries read 584-byte pages only, and pass on 24 heads, which have no prefill kernel",
    sglang_versions=("0.5.23",),
    fingerprint="d44e7a1c813cf45f",
    remove_when="SGLang reads the V4.1 layouts on sm_12x and pads prefill heads to what FlashInfer has",
)

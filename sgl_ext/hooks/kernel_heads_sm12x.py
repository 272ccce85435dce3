"""MqaAttentionBase._kernel_num_heads on sm_12x: the narrowest width that FlashInfer decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.gpu_capability import kernel_heads
from sgl_ext.hook import Hook, HookKind


def pad_to_a_kernel(original: Callable[[Any, int], int], attention: Any, num_tokens: int) -> int:
    """24 heads of three ranks become 32 in decode, where SGLang pads them to 64. In prefill they stay 24, as
    the attention backend would take the padding off again; hook kv_layout_attention pads there.
    """
    from sglang.kernels.ops.attention.flash_mla_sm120 import SM120_DECODE_MAX_TOKENS

    local = int(attention.n_local_heads)
    padded = kernel_heads(local)
    if padded == local or num_tokens > SM120_DECODE_MAX_TOKENS:
        return original(attention, num_tokens)
    return padded


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4.MqaAttentionBase._kernel_num_heads",
    kind=HookKind.AROUND,
    replacement=pad_to_a_kernel,
    reason="FlashInfer 0.7.2 has kernels for 8, 16, 32, 64 and 128 heads on sm_12x; SGLang pads 24 to 64",
    sglang_versions=("0.5.23",),
    fingerprint="3e278a838159724f",
    remove_when="SGLang pads decode heads to the next width that FlashInfer has",
)

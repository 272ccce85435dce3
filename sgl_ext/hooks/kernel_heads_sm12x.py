"""MqaAttentionBase._kernel_num_heads on sm_12x: a width that FlashInfer's prefill has a kernel for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.gpu_capability import kernel_heads
from sgl_ext.hook import Hook, HookKind


def pad_to_a_kernel(original: Callable[[Any, int], int], attention: Any, num_tokens: int) -> int:
    """TP 3 has 24 heads a rank: in decode SGLang pads them to 64, in prefill it does not pad them at all."""
    local = int(attention.n_local_heads)
    padded = kernel_heads(local)
    return padded if padded != local else original(attention, num_tokens)


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4.MqaAttentionBase._kernel_num_heads",
    kind=HookKind.AROUND,
    replacement=pad_to_a_kernel,
    reason="FlashInfer 0.7.2 has FP8 prefill kernels for 8, 16, 32, 64 and 128 heads on sm_12x, not 24",
    sglang_versions=("0.5.23",),
    fingerprint="3e278a838159724f",
    remove_when="SGLang pads prefill heads to what FlashInfer has",
)

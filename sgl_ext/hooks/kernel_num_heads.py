"""MqaAttentionBase._kernel_num_heads: no padding of query heads, since no GPU kernel wants a width."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind


def keep_local_heads(attention: Any, num_tokens: int) -> int:
    return int(attention.n_local_heads)


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4.MqaAttentionBase._kernel_num_heads",
    kind=HookKind.REPLACE,
    replacement=keep_local_heads,
    reason="with more than one rank it pads to 64 heads, and the padding asks CUDA about its capture state",
    sglang_versions=("0.5.23",),
    fingerprint="3e278a838159724f",
    remove_when="SGLang pads query heads on CUDA only",
)

"""DeepseekV4AttnBackend._use_sparse_prefill: prefill by slot lists, as decode, not by a flat workspace."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind


def read_slot_lists(backend: Any, forward_batch: Any, *, num_qo_tokens: int) -> bool:
    return False


HOOK = Hook(
    target="sglang.srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend._use_sparse_prefill",
    kind=HookKind.REPLACE,
    replacement=read_slot_lists,
    reason="its workspace is built by Triton kernels",
    sglang_versions=("0.5.23",),
    fingerprint="2164c9ecbff457c7",
    remove_when="SGLang has a CPU form of sparse prefill",
)

"""adjust_config_with_unaligned_cpu_tp: CPU-only padding that multiplies V4.1's single KV head."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind


def keep_config(model_config: Any, load_config: Any, tp_size: int) -> Any:
    return model_config


HOOK = Hook(
    target="sglang.srt.configs.update_config.adjust_config_with_unaligned_cpu_tp",
    kind=HookKind.REPLACE,
    replacement=keep_config,
    reason="it raises num_key_value_heads, which MQA asserts to be 1",
    sglang_versions=("0.5.23",),
    fingerprint="fcbd518636d151c3",
    remove_when="SGLang leaves DeepSeek-V4 configs alone here",
)

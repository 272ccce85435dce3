"""KVCacheConfigurator.configure: on the CPU it refuses V4.1's packed FP8 pool by the wrong test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from sgl_ext.hook import Hook, HookKind


def configure_packed_pool(original: Callable[..., Any], configurator: Any, *args: Any, **kwargs: Any) -> Any:
    """Passes the check that asks for AMX: it is about multi-head FP8 caches, and V4.1's pool holds packed
    bytes that this plugin's own PyTorch code reads and writes. Only the check is affected."""
    module = "sglang.srt.mem_cache.kv_cache_configurator"
    with (
        patch(f"{module}.cpu_has_amx_support", lambda: True),
        patch(f"{module}.attention_backends", lambda: {"intel_amx"}),
    ):
        return original(configurator, *args, **kwargs)


HOOK = Hook(
    target="sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator.configure",
    kind=HookKind.AROUND,
    replacement=configure_packed_pool,
    reason="CPU FP8 KV cache requires Intel AMX support, says a check meant for multi-head attention",
    sglang_versions=("0.5.23",),
    fingerprint="c8e14f836b569224",
    remove_when="the check exempts DeepSeek-V4 pools",
)

"""select_dsv4_kv_layout: V4.1's own layouts on sm_12x, where they are asked for and pass their check."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kv_layouts.boot_check import proved_layout, read_layout


def choose_layout(original: Callable[..., Any]) -> Any:
    if proved_layout() == "v4":
        return original()
    from sglang.kernels.ops.attention.dsv4.kv_layout import KVLayout

    return KVLayout.V41, "auto"


def read_early(_scheduler: Any) -> str | None:
    """A bad value ends the start; which layout a pool has is in the rank report."""
    read_layout(os.environ)
    return None


HOOK = Hook(
    target="sglang.srt.mem_cache.deepseek_v4_memory_pool.select_dsv4_kv_layout",
    kind=HookKind.AROUND,
    replacement=choose_layout,
    reason="SGLang keeps the 528 and 288 byte layouts to sm_100 and sm_103; a GB10 stores 584 bytes instead",
    sglang_versions=("0.5.23",),
    fingerprint="1a1dd4ffa4e671ec",
    remove_when="SGLang selects the V4.1 layouts on sm_12x",
    check_effect=read_early,
)

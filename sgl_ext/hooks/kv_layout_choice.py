"""select_dsv4_kv_layout: V4.1's own layouts on sm_12x, where they are asked for and pass their check."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kv_layouts.boot_check import read_layout, require_v41
from sgl_ext.kv_layouts.flashinfer_attention import attend_v41
from sgl_ext.kv_layouts.packed_rows import RowFormat

_GROUPS, _HEADS_OF_A_GROUP = 8, 8  # DeepSeek-V4.1's 64 query heads


def choose_layout(original: Callable[..., Any]) -> Any:
    if read_layout(os.environ) == "v4":
        return original()
    from sglang.kernels.ops.attention.dsv4.kv_layout import KVLayout
    from sglang.srt.runtime_context import get_parallel

    heads = -(-_GROUPS // get_parallel().attn_tp_size) * _HEADS_OF_A_GROUP
    require_v41(store_by_sglang, attend_v41, heads, torch.device("cuda", torch.cuda.current_device()))
    return KVLayout.V41, "auto"


def store_by_sglang(
    cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, page_size: int, form: RowFormat
) -> None:
    from sglang.kernels.ops.attention.dsv4.attn import fused_store_cache

    fused_store_cache(rows, cache, slots, page_size=page_size, type="flashmla", layout=form.name)


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

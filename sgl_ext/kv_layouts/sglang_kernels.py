"""The kernels that an engine on sm_12x stores and reads KV rows with, as the boot check calls them."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.kv_layouts.boot_check import LayoutKernels
from sgl_ext.kv_layouts.packed_rows import RowFormat


def store_by_sglang(
    cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, page_size: int, form: RowFormat
) -> None:
    from sglang.kernels.ops.attention.dsv4.attn import fused_store_cache

    fused_store_cache(rows, cache, slots, page_size=page_size, type="flashmla", layout=form.name)


def attend_by_sglang(**call: Any) -> tuple[torch.Tensor, object]:
    """The name that the attention backend imports, with whatever hooks are on it."""
    from sglang.kernels.ops.attention import flash_mla_sm120

    output: tuple[torch.Tensor, object] = flash_mla_sm120.flash_mla_with_kvcache_sm120(**call)
    return output


SGLANG_KERNELS = LayoutKernels(store=store_by_sglang, attend=attend_by_sglang)

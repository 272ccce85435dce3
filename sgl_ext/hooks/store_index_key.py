"""store_fp4_index_k_cache: quantise and store the indexer's keys."""

from __future__ import annotations

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.index_key_slots import store_keys


def store_index_keys(
    input: torch.Tensor, cache: torch.Tensor, loc: torch.Tensor, *, page_size: int, rne: bool = False
) -> None:
    store_keys(cache, loc, input.flatten(0, -2), page_size, ties_to_even=rne)


HOOK = Hook(
    target="sglang.kernels.ops.kvcache.dsv4_fp4_index_k_cache.store_fp4_index_k_cache",
    kind=HookKind.REPLACE,
    replacement=store_index_keys,
    reason="a Triton kernel",
    sglang_versions=("0.5.23",),
    fingerprint="53eed99304933180",
    remove_when="SGLang has a CPU form of this kernel",
)

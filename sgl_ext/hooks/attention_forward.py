"""DeepseekV4AttnBackend._forward_attention: sliding window plus selected compressed rows, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.kv_slots import load_rows
from sgl_ext.kernels.sparse_attention import attend_rows


def attend_slot_lists(
    backend: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: Any,
    forward_batch: Any,
    compress_ratio: int,
    save_kv_cache: bool = True,
    attn_sink: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """Reads the slots that SGLang's own metadata and indexer list for each query, out of the packed pools.

    q may be padded to the width a GPU kernel wants; only the rank's real heads are computed.
    """
    if backend.mtp_enabled and forward_batch.forward_mode.is_idle():
        return q.new_empty((q.shape[0], q.shape[1], layer.v_head_dim))
    if save_kv_cache:
        backend.store_cache(layer.layer_id, k, forward_batch)
    assert attn_sink is not None
    pool, core = backend.token_to_kv_pool, backend.forward_metadata.core_attn_metadata
    num_queries, num_heads = q.shape[0], layer.tp_q_head_num
    sources = [
        (
            pool.get_swa_key_buffer_radix(layer.layer_id),
            pool.get_swa_key_page_size(),
            _listed(core.swa_page_indices, core.swa_topk_lengths, num_queries),
        )
    ]
    if compress_ratio != 0:
        sources.append(
            (
                pool.get_extra_key_buffer(layer.layer_id),
                pool.get_extra_key_page_size(layer.layer_id),
                _listed(
                    core.sparse_page_indices(compress_ratio),
                    core.sparse_topk_lengths(compress_ratio),
                    num_queries,
                ),
            )
        )
    kv, rows = _gather(sources)
    out = torch.zeros_like(q)
    out[:, :num_heads] = attend_rows(q[:, :num_heads], kv, rows, attn_sink[:num_heads], backend.softmax_scale)
    return out


def _listed(slots: torch.Tensor, lengths: torch.Tensor, num_queries: int) -> torch.Tensor:
    """int64 [T, K] slots with -1 where a query's list has ended; rows past the metadata list nothing."""
    slots, lengths = slots[:num_queries].long(), lengths[:num_queries]
    listed = slots.masked_fill(torch.arange(slots.shape[1]) >= lengths.unsqueeze(1), -1)
    missing = num_queries - listed.shape[0]
    return torch.nn.functional.pad(listed, (0, 0, 0, missing), value=-1) if missing else listed


def _gather(sources: list[tuple[torch.Tensor, int, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each slot's row once, and the queries' lists as indices into those rows."""
    tables, lists, offset = [], [], 0
    for cache, page_size, slots in sources:
        distinct, places = torch.unique(slots.clamp_min(0), return_inverse=True)
        tables.append(load_rows(cache, distinct, page_size))
        lists.append(torch.where(slots >= 0, places + offset, -1))
        offset += distinct.shape[0]
    return torch.cat(tables), torch.cat(lists, dim=1)


HOOK = Hook(
    target="sglang.srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend._forward_attention",
    kind=HookKind.REPLACE,
    replacement=attend_slot_lists,
    reason="FlashMLA has no CPU path",
    sglang_versions=("0.5.23",),
    fingerprint="6e3dd09145897339",
    remove_when="SGLang has a CPU form of this kernel",
)

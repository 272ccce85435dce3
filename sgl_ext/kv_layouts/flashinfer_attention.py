"""FlashInfer 0.7.2's sparse attention on sm_12x over V4.1 layouts, with SGLang's arguments.

SGLang's own entry (kernels/ops/attention/flash_mla_sm120.py) calls the same function, but for 584-byte pages,
which it first copies into pages of 64 tokens; this format takes pages of any size. Not run on a GB10.
"""

from __future__ import annotations

import torch

from sgl_ext.gpu_capability import kernel_heads

_TILE = 64  # listed rows of one split, in FlashInfer
_DECODE_TOKENS = 64


def attend_v41(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices: torch.Tensor,
    head_dim_v: int,
    softmax_scale: float,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """q [T, 1, H, 512] -> [T, 1, H, 512]. Caches are [pages, page_size, 1, bytes of a token] views."""
    from flashinfer.mla._sparse_mla_sm120 import (  # type: ignore[import-not-found]
        _sparse_mla_sm120_paged_attention,
    )

    queries, real_heads = q.shape[0], q.shape[-2]
    heads = kernel_heads(real_heads)
    wide = pad_heads(q.view(queries, real_heads, -1), heads, dim=1)
    sink = None if attn_sink is None else pad_heads(attn_sink[:real_heads].float(), heads, dim=0)
    listed, extra = _flat(indices), _flat(extra_indices_in_kvcache)
    output = wide.new_empty((queries, heads, head_dim_v))
    lse = torch.empty((queries, heads), dtype=torch.float32, device=q.device)
    mid_out = mid_lse = None
    if queries <= _DECODE_TOKENS:
        splits = sum(-(-rows.shape[-1] // _TILE) for rows in (listed, extra) if rows is not None)
        scratch = heads if heads == 8 else -(-heads // 16) * 16
        mid_out = wide.new_empty((queries, scratch, splits, head_dim_v))
        mid_lse = torch.empty((queries, scratch, splits), dtype=torch.float32, device=q.device)
    _sparse_mla_sm120_paged_attention(
        wide,
        k_cache.view(torch.uint8),
        listed,
        output,
        lse,
        softmax_scale,
        d_v=head_dim_v,
        kv_scale_format="ue8m0_g32",
        topk_length=topk_length,
        attn_sink=sink,
        extra_kv_cache=None if extra_k_cache is None else extra_k_cache.view(torch.uint8),
        extra_indices=extra,
        extra_topk_length=extra_topk_length,
        mid_out=mid_out,
        mid_lse=mid_lse,
        extra_fp4=extra_k_cache is not None and extra_k_cache.shape[-1] == 288,
    )
    return output[:, :real_heads].unsqueeze(1), None


def _flat(indices: torch.Tensor | None) -> torch.Tensor | None:
    if indices is None:
        return None
    return indices.squeeze(1) if indices.dim() == 3 else indices


def pad_heads(tensor: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """Zero heads after the tensor's own, heads in all."""
    missing = list(tensor.shape)
    missing[dim] = heads - tensor.shape[dim]
    return torch.cat([tensor, tensor.new_zeros(missing)], dim=dim) if missing[dim] else tensor.contiguous()

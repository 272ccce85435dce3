"""Drawn caches and attention calls in the shapes of a rank, and plain PyTorch over the same bytes.

T queries, H heads, D = 512. A call is SGLang's: a sliding window's rows and, in a layer with compressed rows,
those that the indexer selected. Keys are values; a sink per head joins the softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sgl_ext.gpu_capability import kernel_heads
from sgl_ext.kernels.sparse_attention import attend_rows
from sgl_ext.kv_layouts.packed_rows import DIM, RowFormat, load_rows, view_tokens

SCALE = DIM**-0.5
DECODE_TOKENS = 64  # SM120_DECODE_MAX_TOKENS: longer calls come with the rank's own heads, unpadded
TOKENS = 1024  # rows of a drawn cache
_ALIGN = 64  # SGLang pads lists to whole 64 entries
DRAFT_WIDTH = 64  # DSpark's attention brings its decode queries in this width, whatever the rank's heads
_LEFT_OVER = 20.0  # size of what stands in heads that the draft's buffer was never filled in
_SINK = 6.0  # about the logarithm of what 640 rows add up to, so that a missing sink shows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """A rank's attention. heads: of the rank, with those of balanced padding. page: tokens of a page before
    compression; ratios: tokens of a compressed row, 0 where a layer has the window alone. draft_heads: the
    width that a draft's decode queries come in where it is not the rank's own, else 0.
    """

    heads: int
    window: int
    selected: int
    ratios: tuple[int, ...]
    page: int = 256
    draft_heads: int = 0

    def page_rows(self, ratio: int) -> int:
        return self.page // ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCache:
    """raw: uint8 [pages, bytes of a page]. rows_ND: what the layout keeps of the drawn rows."""

    raw: torch.Tensor
    page_size: int
    form: RowFormat

    def rows_ND(self) -> torch.Tensor:
        every = torch.arange(TOKENS, device=self.raw.device)
        return load_rows(self.raw, every, self.page_size, self.form)

    def view(self) -> torch.Tensor:
        return view_tokens(self.raw, self.page_size, self.form)


def rank_shape(config: Any, tp_size: int, *, has_draft: bool = False) -> AttentionShape:
    """config: the text config, padded to whole head groups of a rank. has_draft: DSpark's stages run too."""
    heads = config.num_attention_heads // tp_size
    return AttentionShape(
        heads=heads,
        draft_heads=DRAFT_WIDTH if has_draft and heads < DRAFT_WIDTH else 0,
        window=config.sliding_window,
        selected=config.index_topk,
        ratios=tuple(sorted(set(config.compress_ratios))),
    )


def draw_call(
    shape: AttentionShape,
    queries: int,
    window: DrawnCache,
    extra: DrawnCache | None,
    device: torch.device,
    *,
    of_draft: bool = False,
) -> dict[str, Any]:
    """SGLang's arguments of flash_mla_with_kvcache_sm120. A decode step's queries are padded with zero heads
    to the width that the kernels take; those of a draft to its own width, with whatever its buffer held. The
    first queries see what the first tokens of a prompt see: one row of the window and none selected, a part
    of both.
    """
    draw = torch.Generator().manual_seed(queries)
    width = kernel_heads(shape.heads) if queries <= DECODE_TOKENS else shape.heads
    q = torch.zeros((queries, 1, width, DIM))
    if of_draft:
        width = shape.draft_heads
        q = torch.randn((queries, 1, width, DIM), generator=draw) * _LEFT_OVER
    q[:, :, : shape.heads] = torch.randn((queries, 1, shape.heads, DIM), generator=draw)
    sink = torch.zeros(width)
    sink[: shape.heads] = _SINK + torch.randn(shape.heads, generator=draw)
    call: dict[str, Any] = {
        "q": q.to(device, torch.bfloat16),
        "k_cache": window.view(),
        "attn_sink": sink.to(device),
        "head_dim_v": DIM,
        "softmax_scale": SCALE,
    }
    lists, lengths = _draw_lists(queries, shape.window, draw)
    call |= {"indices": lists.to(device), "topk_length": lengths.to(device)}
    if extra is not None:
        lists, lengths = _draw_lists(queries, shape.selected, draw)
        lists[0] = -1  # of length one: SGLang's form of no compressed row yet
        call |= {
            "extra_k_cache": extra.view(),
            "extra_indices_in_kvcache": lists.to(device),
            "extra_topk_length": lengths.to(device),
        }
    return call


def reference(call: dict[str, Any], heads: int, window: DrawnCache, extra: DrawnCache | None) -> torch.Tensor:
    """fp32 [T, heads, D] over the rows that the caches hold."""
    rows, tables = [_listed(call["indices"], call["topk_length"])], [window.rows_ND()]
    if extra is not None:
        own = _listed(call["extra_indices_in_kvcache"], call["extra_topk_length"])
        rows.append(torch.where(own >= 0, own + TOKENS, -1))
        tables.append(extra.rows_ND())
    q, sink = call["q"][:, 0, :heads].float(), call["attn_sink"][:heads]
    return attend_rows(q, torch.cat(tables), torch.cat(rows, dim=1), sink, SCALE)


def _draw_lists(queries: int, width: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 [T, 1, padded width] rows with -1 past a list's end, and the lengths."""
    lengths = torch.full((queries,), width, dtype=torch.int32)
    lengths[0], lengths[1] = 1, width // 2 + 1
    lists = torch.full((queries, 1, -(-width // _ALIGN) * _ALIGN), -1, dtype=torch.int32)
    for query, length in enumerate(lengths.tolist()):
        lists[query, 0, :length] = torch.randperm(TOKENS, generator=draw)[:length].to(torch.int32)
    return lists, lengths


def _listed(lists: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    flat = lists[:, 0].long()
    ended = torch.arange(flat.shape[1], device=flat.device) >= lengths.unsqueeze(1)
    return flat.masked_fill(ended, -1)

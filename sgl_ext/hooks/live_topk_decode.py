"""FullTopKIndexer._torch_decode: the top-k of index layers outside the candidate scheme, on live lengths."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.indexer.decode_step import score_step, write_selection


def topk_live(indexer: Any, inputs: Any) -> None:
    step = score_step(inputs, indexer.token_to_kv_pool, indexer.req_to_token)
    if step is not None:
        write_selection(inputs, step, indexer.req_to_token)


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.v41_indexer.full_topk.FullTopKIndexer._torch_decode",
    kind=HookKind.REPLACE,
    replacement=topk_live,
    reason="off sm_90 and sm_100 SGLang gathers slots and selects over the context's capacity at every step",
    sglang_versions=("0.5.23",),
    fingerprint="ab0d50a6c70bd0f6",
    remove_when="SGLang's indexer has a live-length form for sm_12x",
)

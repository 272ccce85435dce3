"""DenseBlocksBackend.publish_decode: candidate blocks and the selection of their source, on live lengths."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.indexer.decode_step import publish_blocks, score_step, write_selection


def publish_live(backend: Any, inputs: Any) -> Any:
    from sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks import BlockIds

    step = score_step(inputs, backend.token_to_kv_pool, backend.req_to_token)
    if step is None:
        return None
    blocks = publish_blocks(step, backend.topk_blocks)
    write_selection(inputs, step, backend.req_to_token)
    return BlockIds(blocks=blocks)


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks.DenseBlocksBackend.publish_decode",
    kind=HookKind.REPLACE,
    replacement=publish_live,
    reason="off sm_90 and sm_100 SGLang gathers slots and selects over the context's capacity at every step",
    sglang_versions=("0.5.23",),
    fingerprint="cd2f56d331e2c922",
    remove_when="SGLang's indexer has a live-length form for sm_12x",
)

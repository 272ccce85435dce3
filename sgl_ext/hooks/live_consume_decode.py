"""DenseBlocksBackend.consume_decode: only the published blocks' positions are scored."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.indexer.decode_step import score_step, write_selection


def consume_live(backend: Any, inputs: Any, published: Any) -> None:
    blocks = None if published is None else published.blocks
    step = score_step(inputs, backend.token_to_kv_pool, backend.req_to_token, blocks)
    if step is None:
        return
    assert blocks is not None and blocks.shape[0] == step.lens.shape[0], "a source publishes before"
    write_selection(inputs, step, backend.req_to_token, blocks)


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.v41_indexer.dense_blocks.DenseBlocksBackend.consume_decode",
    kind=HookKind.REPLACE,
    replacement=consume_live,
    reason="SGLang scores every position of the context's capacity and then looks at published blocks only",
    sglang_versions=("0.5.23",),
    fingerprint="d35963ff086331e9",
    remove_when="SGLang's indexer has a live-length form for sm_12x",
)

"""EngramEmbedding: rows from packed files instead of a table in memory."""

from __future__ import annotations

from typing import Any

from sgl_ext.engram.embedding import StoredEngramEmbedding
from sgl_ext.hook import Hook, HookKind


def find_wrong_embedding(scheduler: Any) -> str | None:
    """Every Engram layer of the built model must hold ours, and no table."""
    from sglang.srt.layers.engram import Engram

    model = scheduler.tp_worker.model_runner.model
    layers = [module for module in model.modules() if isinstance(module, Engram)]
    if not layers:
        return "a model without Engram layers"
    for layer in layers:
        if type(layer.embed) is not StoredEngramEmbedding:
            return f"an Engram layer with {type(layer.embed).__qualname__}"
        if layer.embed.weight.numel() != 0:
            return f"a table of {layer.embed.weight.numel()} values in memory"
    return None


HOOK = Hook(
    target="sglang.srt.layers.engram.EngramEmbedding",
    kind=HookKind.REPLACE,
    replacement=StoredEngramEmbedding,
    reason="SGLang keeps the tables in GPU or host memory: 203 GB that a Spark does not have",
    sglang_versions=("0.5.23",),
    fingerprint="88dea0225e849f3b",
    remove_when="SGLang reads Engram rows from disk",
    check_effect=find_wrong_embedding,
)

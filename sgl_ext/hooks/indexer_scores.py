"""DeepseekV41Indexer.scores: one formula for prefill and decode."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.kernels.index_logits import score_keys


def score_rows(indexer: Any, q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """q [t, H, d], k [n, d], weights [t, H] -> fp32 [t, n]."""
    return score_keys(q, weights, k.unsqueeze(0))


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.dsv41_sparse.DeepseekV41Indexer.scores",
    kind=HookKind.REPLACE,
    replacement=score_rows,
    reason="its bf16 keys do not multiply with fp32 queries, and it rounds at other points than decode does",
    sglang_versions=("0.5.23",),
    fingerprint="9296ee359b1f13d3",
    remove_when="scores follows the model's dtype",
)

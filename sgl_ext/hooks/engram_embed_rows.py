"""Engram.embed_rows: table rows in the model's own type."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind


def follow_model_dtype(rows: torch.Tensor, engram: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return rows.to(engram.wkv.weight.dtype)


HOOK = Hook(
    target="sglang.srt.layers.engram.Engram.embed_rows",
    kind=HookKind.AFTER,
    replacement=follow_model_dtype,
    reason="rows are bf16 and do not multiply with fp32 weights",
    sglang_versions=("0.5.23",),
    fingerprint="2b4088ed4ba1496c",
    remove_when="the lookup follows the model's dtype",
)

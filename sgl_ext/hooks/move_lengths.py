"""DeepseekV4AttnBackend._move_to_device: lengths of a verify block as a tensor, without pinned memory."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind


def make_lengths(backend: Any, x: list[int]) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.int32)


HOOK = Hook(
    target="sglang.srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend._move_to_device",
    kind=HookKind.REPLACE,
    replacement=make_lengths,
    reason="it pins memory for a copy to the GPU; without a GPU there is nothing to pin for",
    sglang_versions=("0.5.23",),
    fingerprint="13f9c9c7a1213c3b",
    remove_when="_move_to_device pins on CUDA only",
)

"""is_sm100_or_newer of the V4.1 indexer: sm_12x is newer than sm_100 and has none of its kernels (B1)."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind


def is_sm10x() -> bool:
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 10)


def find_deep_gemm_indexer(scheduler: Any) -> str | None:
    """The built backend must decode by dense blocks, which the live-length hooks replace."""
    backend = scheduler.tp_worker.model_runner.attn_backend
    candidates = getattr(backend, "decode_candidates", None)
    if candidates is not None and type(candidates).__name__ != "DenseBlocksBackend":
        return f"candidates from {type(candidates).__name__}"
    return None


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.v41_indexer.is_sm100_or_newer",
    kind=HookKind.REPLACE,
    replacement=is_sm10x,
    reason="for sm_12x the candidate indexer then asks DeepGEMM for kernels of sm_100, and the start raises",
    sglang_versions=("0.5.23",),
    fingerprint="771cbdf03d71e32c",
    remove_when="SGLang tells sm_12x from sm_100 here (sgl-project/sglang#39914)",
    check_effect=find_deep_gemm_indexer,
)

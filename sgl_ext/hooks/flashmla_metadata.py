"""_create_flashmla_metadata: a FlashMLA tile plan, which the CPU attention does not read."""

from __future__ import annotations

from sgl_ext.hook import Hook, HookKind


def no_tile_plan() -> None:
    return None


HOOK = Hook(
    target="sglang.srt.layers.attention.deepseek_v4_backend._create_flashmla_metadata",
    kind=HookKind.REPLACE,
    replacement=no_tile_plan,
    reason="imports flash_mla, which needs CUDA",
    sglang_versions=("0.5.23",),
    fingerprint="dd7689f5551d0162",
    remove_when="the backend builds no FlashMLA plan off CUDA",
)

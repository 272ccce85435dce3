"""ModelRunner.load_model: once the target's weights are there, wo_a goes back to FP8 if that was chosen."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.wo_a.boot_choice import pack_chosen


def pack_after_load(_result: Any, runner: Any) -> None:
    """The draft's stages keep theirs: one of their two forms reads the bf16 weight itself."""
    if not runner.is_draft_worker:
        pack_chosen(runner.model.model.layers)


HOOK = Hook(
    target="sglang.srt.model_executor.model_runner.ModelRunner.load_model",
    kind=HookKind.AFTER,
    replacement=pack_after_load,
    reason="SGLang dequantises wo_a to bf16 while it loads",
    sglang_versions=("0.5.23",),
    fingerprint="bf6781e45efd63b5",
    remove_when="SGLang multiplies wo_a in FP8 with blocks of 32 x 32 on sm_12x",
)

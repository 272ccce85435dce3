"""DsparkVerifyEpilogue.begin_static_step: planned lengths go to where the graph's own accept reads them."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import current_step


def stage_planned_lens(result: None, epilogue: Any, bs: int, armed: bool) -> None:
    step = current_step()
    if step is None or step.verify_lens is None:
        return
    epilogue.verify_lens_buf[:bs].copy_(step.verify_lens)
    epilogue._static_step_state = None  # else the next step of this size would keep these lengths


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_verify.DsparkVerifyEpilogue.begin_static_step",
    kind=HookKind.AFTER,
    replacement=stage_planned_lens,
    reason="it fills the lengths with the whole block",
    sglang_versions=("0.5.23",),
    fingerprint="c774a6c13f892de2",
    remove_when="SGLang takes verify lengths from a plugin in static mode",
)

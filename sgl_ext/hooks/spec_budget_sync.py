"""DSparkVerifyPlanner.resolve_verify_token_budget: without overlap, confidences stay on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import current_step


def resolve_nothing(original: Callable[..., Any], planner: Any, **kwargs: Any) -> Any:
    return original(planner, **kwargs) if current_step() is None else None


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_planner.DSparkVerifyPlanner.resolve_verify_token_budget",
    kind=HookKind.AROUND,
    replacement=resolve_nothing,
    reason="without overlap it waits for the draft twice in each step, for a budget that only SGLang's own "
    "layout reads",
    sglang_versions=("0.5.23",),
    fingerprint="14384937092ba5e7",
    remove_when="SGLang takes verify lengths from a plugin",
)

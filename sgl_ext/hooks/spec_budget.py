"""DSparkVerifyPlanner.confidence_budget_prepare: no budget of verify rows that nothing would read."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind


def prepare_nothing(planner: Any) -> None:
    """The scheduler asks once, at its start, what to call before each step; the widths come from the plan."""
    return None


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_planner.DSparkVerifyPlanner.confidence_budget_prepare",
    kind=HookKind.REPLACE,
    replacement=prepare_nothing,
    reason="in compact mode SGLang sorts the last steps' confidences on the host before each step, for a "
    "budget that only its own layout reads",
    sglang_versions=("0.5.23",),
    fingerprint="29568c5644be8ca5",
    remove_when="SGLang takes verify lengths from a plugin",
)

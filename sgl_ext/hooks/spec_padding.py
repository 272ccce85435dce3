"""RaggedVerifyLayout.padded_to_bucket: a layout that was padded for a graph before is not padded again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import get_speculation


def pad_once(original: Callable[..., Any], layout: Any, *, padded_bs: int, cap: int | None = None) -> Any:
    speculation = get_speculation()
    if speculation is None:
        return original(layout, padded_bs=padded_bs, cap=cap)
    return speculation.layouts.keep(
        layout, ("padded", padded_bs, cap), lambda: original(layout, padded_bs=padded_bs, cap=cap)
    )


HOOK = Hook(
    target="sglang.srt.speculative.ragged_verify.RaggedVerifyLayout.padded_to_bucket",
    kind=HookKind.AROUND,
    replacement=pad_once,
    reason="the runner and the attention each pad every step's layout, four launches that give what the step "
    "before gave",
    sglang_versions=("0.5.23",),
    fingerprint="2ed0f0109a8453d8",
    remove_when="SGLang keeps padded layouts",
)

"""_resolve_spec_v2_tokens: a step's accepted counts are on the host here, one step late under overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import get_speculation

_MODULE = "sglang.srt.managers.scheduler_components.batch_result_processor"


def observe_accepted(
    original: Callable[..., Any], processor: Any, result: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    speculation = get_speculation()
    if speculation is not None:
        speculation.observe(result, result.accept_lens.tolist())
    return original(processor, result, batch, *args, **kwargs)


HOOK = Hook(
    target=f"{_MODULE}.SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
    kind=HookKind.AROUND,
    replacement=observe_accepted,
    reason="the controller learns what was accepted, in the order of the steps, without waiting for the GPU",
    sglang_versions=("0.5.23",),
    fingerprint="d79752842869a4d7",
    remove_when="SGLang decides the width of each request from measured cost and acceptance",
)

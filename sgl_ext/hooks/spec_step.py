"""DSparkWorkerV2._forward_decode: the step is planned before it, and its result carries the plan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import get_speculation


def plan_and_run(
    original: Callable[..., Any], worker: Any, batch: Any, on_publish: Any, *args: Any, **kwargs: Any
) -> Any:
    speculation = get_speculation()
    if speculation is None or batch.forward_mode.is_idle() or not batch.reqs:
        return original(worker, batch, on_publish, *args, **kwargs)
    speculation.begin(batch.reqs)
    try:
        publish = None if on_publish is None else functools.partial(publish_lengths, on_publish)
        result = original(worker, batch, publish, *args, **kwargs)
    except BaseException:
        speculation.drop()
        raise
    speculation.end(result)
    return result


def publish_lengths(on_publish: Callable[..., None], new_seq_lens: Any, confidence: Any = None) -> None:
    """Without the confidences, which SGLang copies to the host for the budget that spec_budget.py leaves
    out."""
    on_publish(new_seq_lens)


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2._forward_decode",
    kind=HookKind.AROUND,
    replacement=plan_and_run,
    reason="SGLang fixes the verify width at launch; here it is decided for every step and request",
    sglang_versions=("0.5.23",),
    fingerprint="ec8afef40bb075bb",
    remove_when="SGLang decides the width of each request from measured cost and acceptance",
)

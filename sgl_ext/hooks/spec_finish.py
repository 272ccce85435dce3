"""DSparkWorkerV2.note_request_finished: what a request taught is kept for those that continue it."""

from __future__ import annotations

from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import get_speculation


def let_go(result: None, worker: Any, *, rid: str, natural_stop: bool) -> None:
    speculation = get_speculation()
    if speculation is not None:
        speculation.rank.finish(rid)


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2.note_request_finished",
    kind=HookKind.AFTER,
    replacement=let_go,
    reason="SGLang's worker keeps nothing of a request that ended",
    sglang_versions=("0.5.23",),
    fingerprint="0c8d7fa384850f7d",
    remove_when="SGLang decides the width of each request from measured cost and acceptance",
)

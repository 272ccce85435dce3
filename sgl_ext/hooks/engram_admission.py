"""Scheduler._add_request_to_queue: a prompt's Engram rows are read ahead from the moment it is queued."""

from __future__ import annotations

from typing import Any

from sgl_ext.engram.row_service import get_row_service
from sgl_ext.hook import Hook, HookKind


def announce_prompt(result: None, scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    stager = get_row_service().stager
    if stager is None:  # CPU engine
        return
    stager.poll()
    waiting = {queued.rid for queued in scheduler.waiting_queue}
    chunked = scheduler.chunked_req
    stager.lookahead.keep_only(
        waiting | stager.under_way_ids | ({chunked.rid} if chunked is not None else set())
    )
    if req.rid in waiting:
        # After a retraction the outputs so far are prefilled again.
        stager.lookahead.admitted(req.rid, list(req.origin_input_ids) + list(req.output_ids))


HOOK = Hook(
    target="sglang.srt.managers.scheduler.Scheduler._add_request_to_queue",
    kind=HookKind.AFTER,
    replacement=announce_prompt,
    reason="prefill rows depend on the prompt alone, so they can be read while the request waits its turn",
    sglang_versions=("0.5.23",),
    fingerprint="056a60799b02ac47",
    remove_when="SGLang reads Engram rows from disk",
)

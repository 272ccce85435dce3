"""Scheduler._add_request_to_queue: a wish for speculation that does not exist ends the request by name."""

from __future__ import annotations

from typing import Any

from sgl_ext.errors import SpecOptionError
from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import get_speculation


def refuse_bad_option(scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang's own way for requests it cannot serve: every rank sees the same request and ends it alike; the
    client gets HTTP 400 with the message."""
    speculation = get_speculation()
    if speculation is None or req.to_finish is not None:
        return
    try:
        speculation.rank.read_option(req)
    except SpecOptionError as error:
        req.set_finish_with_abort(str(error))
        req.sampling_params.custom_params = None


HOOK = Hook(
    target="sglang.srt.managers.scheduler.Scheduler._add_request_to_queue",
    kind=HookKind.BEFORE,
    replacement=refuse_bad_option,
    reason="SGLang passes custom_params on unread",
    sglang_versions=("0.5.23",),
    fingerprint="056a60799b02ac47",
    remove_when="SGLang has a per-request switch for speculation",
)

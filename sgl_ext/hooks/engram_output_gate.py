"""SchedulerOutputStreamer.stream_output: no token of a step leaves whose Engram rows could not be read."""

from __future__ import annotations

from typing import Any

from sgl_ext.engram.row_service import get_row_service
from sgl_ext.hook import Hook, HookKind


def check_rows_were_read(streamer: Any, *args: Any, **kwargs: Any) -> None:
    """Raises EngramReadError: SGLang logs it and ends the engine. The step's results are on the host."""
    service = get_row_service()
    # A CPU engine has no step fetch: a failed read was raised where it was waited for.
    error = service.step_fetch.find_error() if service.step_fetch is not None else None
    if error is not None:
        layer, status = error
        service.raise_failed(status, layer)
    if service.metrics is not None:
        service.metrics.publish()


HOOK = Hook(
    target="sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer.stream_output",
    kind=HookKind.BEFORE,
    replacement=check_rows_were_read,
    reason="the last point before tokens leave the engine; a failed read must end the step, not alter it",
    sglang_versions=("0.5.23",),
    fingerprint="829bf4cabecc0f62",
    remove_when="SGLang reads Engram rows from disk",
)

"""capture_one_shape: beside the graph of a batch's whole blocks, the one of one row a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.hooks.spec_plain_tiers import RUNNER


class RowsAsRequests(int):
    """A batch size whose product with the block's rows is the batch: SGLang computes a graph's rows so."""

    def __mul__(self, rows: object) -> int:
        return int(self)


def capture_plain_too(original: Callable[..., Any], runner: Any, size: int, *args: Any, **kwargs: Any) -> Any:
    result = original(runner, size, *args, **kwargs)
    if runner.ragged_verify_mode and not _is_whole_block(runner, size):
        original(runner, RowsAsRequests(size), *args, **kwargs)
    return result


def _is_whole_block(runner: Any, rows: int) -> bool:
    """Another batch's graph has so many rows already."""
    return rows % runner.captured_req_width == 0 and rows // runner.captured_req_width in runner.capture_bs


HOOK = Hook(
    target=f"{RUNNER}.capture_one_shape",
    kind=HookKind.AROUND,
    replacement=capture_plain_too,
    reason="graphs have whole blocks of rows, so a plain step of one request would replay six rows",
    sglang_versions=("0.5.23",),
    fingerprint="3aa5b1c9d2d58958",
    remove_when="SGLang captures compact graphs between whole blocks",
)

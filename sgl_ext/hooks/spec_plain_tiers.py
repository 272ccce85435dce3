"""_build_ragged_verify_token_buckets: graphs for steps that verify one row a request, as plain ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind

RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"


def add_plain_tiers(original: Callable[..., list[int]], runner: Any) -> list[int]:
    """Rows of each captured graph. Example: batches 1, 2 and blocks of 6 rows -> 1, 2, 6, 12."""
    return sorted({*original(runner), *runner.capture_bs})


HOOK = Hook(
    target=f"{RUNNER}._build_ragged_verify_token_buckets",
    kind=HookKind.AROUND,
    replacement=add_plain_tiers,
    reason="graphs have whole blocks of rows, so a plain step of one request would replay six rows",
    sglang_versions=("0.5.23",),
    fingerprint="f60ba205a7d9f280",
    remove_when="SGLang captures compact graphs between whole blocks",
)

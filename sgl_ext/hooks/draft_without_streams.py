"""DSparkWorkerV2._forward_decode: one draft, verify and accept step, without CUDA's stream book-keeping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from sgl_ext.hook import Hook, HookKind


def step_without_streams(original: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """The step is SGLang's. On the CPU nothing runs beside the host, so no tensor outlives a stream."""
    with patch.object(torch.Tensor, "record_stream", _keep_nothing):
        return original(worker, *args, **kwargs)


def _keep_nothing(tensor: torch.Tensor, stream: object) -> None:
    assert tensor.device.type == "cpu", "only a CPU tensor has no stream"


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2._forward_decode",
    kind=HookKind.AROUND,
    replacement=step_without_streams,
    reason="Tensor.record_stream does not take the CPU's stream object",
    sglang_versions=("0.5.23",),
    fingerprint="ec8afef40bb075bb",
    remove_when="the worker asks for streams on CUDA only",
)

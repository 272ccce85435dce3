"""Decode rows between the segments of a breakable CUDA graph: the reference for the captured host node.

In use where --cuda-graph-backend-decode is breakable; it costs a host synchronisation a layer and step.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import breakable_cuda_graph

from sgl_ext.errors import EngramReadError


@breakable_cuda_graph.eager_on_graph  # type: ignore[untyped-decorator]
def _read(embedding: Any, indices: torch.Tensor, out: torch.Tensor) -> None:
    embedding.read_while_waiting(indices, out)


def is_capturing_segments() -> bool:
    return breakable_cuda_graph._current_capture_var.get() is not None


def read_between_segments(embedding: Any, indices: torch.Tensor, out: torch.Tensor) -> None:
    """Ends the current segment, reads eagerly, goes on in a new one; refuses an unbreakable capture."""
    if not is_capturing_segments():
        raise EngramReadError(
            "A CUDA graph with Engram rows must start their reads at the hash, got a capture that did not "
            "(this forward mode is not served from disk under full graphs).",
            hint="start with --cuda-graph-backend-decode breakable --cuda-graph-backend-prefill breakable",
        )
    _read(embedding, indices, out)

"""Rows between the segments of a breakable CUDA graph, read from Python: a host synchronisation a layer.

For decode SGLang 0.5.23 itself ends at the capture of such graphs with this model
(results/gpu-h200-2026-11-29-second/stock-breakable-error.txt), so no hint may send anybody there.
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
            hint="start with --cuda-graph-backend-decode full --cuda-graph-backend-prefill disabled; steps "
            "of more tokens than SPARKCTL_ENGRAM_MAX_STEP_TOKENS need a higher one",
        )
    _read(embedding, indices, out)

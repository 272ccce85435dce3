"""DecodeCudaGraphRunner._run_in_graph_metadata_prep: a verify graph begins with the reads of its rows."""

from __future__ import annotations

from typing import Any

from sgl_ext.engram.row_service import get_row_service
from sgl_ext.hook import Hook, HookKind


def begin_at_head(runner: Any, attn_backend: Any, forward_batch: Any) -> None:
    """The block is in the graph's buffers before a replay, and the metadata's 25 kernels do not touch it.

    Warm-ups run the same body eagerly. A breakable graph reads between its segments, at the layer.
    """
    if runner.model_runner.is_draft_worker or not forward_batch.forward_mode.is_target_verify():
        return
    from sgl_ext.engram.breakable_read import is_capturing_segments

    if is_capturing_segments():
        return
    hasher = runner.model_runner.ngram_embedding_manager.engram_hasher
    if hasher is None:  # a model without Engram layers: refused by its own name once it is built
        return
    get_row_service().early_start.begin(hasher, forward_batch.input_ids, forward_batch)


def find_late_graphs(scheduler: Any) -> str | None:
    """Every full graph of a verify that was captured must start its reads at its head, and the forward in it
    must have hashed nothing else."""
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
    from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend

    early = get_row_service().early_start
    if early.graphs_at_hash or early.lost:
        return (
            f"{early.graphs_at_hash} verify graphs start their reads with the hash, "
            f"{early.lost} reads were started for no forward"
        )
    runner = scheduler.tp_worker.model_runner.decode_cuda_graph_runner
    if not isinstance(runner, DecodeCudaGraphRunner) or not isinstance(runner.backend, FullCudaGraphBackend):
        return None
    if runner.capture_forward_mode.is_target_verify() and early.graphs_at_head == 0:
        return "no verify graph starts its reads at its head"
    return None


HOOK = Hook(
    target="sglang.srt.model_executor.runner.decode_cuda_graph_runner."
    "DecodeCudaGraphRunner._run_in_graph_metadata_prep",
    kind=HookKind.BEFORE,
    replacement=begin_at_head,
    reason="the model hashes a verify's tokens only after the attention's metadata, 56 to 99 us later",
    sglang_versions=("0.5.23",),
    fingerprint="9a5e46663001e41b",
    remove_when="SGLang reads Engram rows from disk",
    check_effect=find_late_graphs,
)

"""DFlashVerifyInput.prepare_for_verify: an eager verify's reads start before its batch is even prepared."""

from __future__ import annotations

from typing import Any

from sgl_ext.engram.early_start import VerifyInputs
from sgl_ext.engram.row_service import get_row_service
from sgl_ext.hook import Hook, HookKind


def begin_before_batch(
    verify_input: Any, batch: Any, target_worker: Any, *, defer_metadata_init: bool = False
) -> None:
    """Not where graphs are replayed: those begin with the reads (engram_verify_graph). A batch too large for
    every graph then starts its reads with the model's own hash."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    runner = target_worker.model_runner
    hasher = runner.ngram_embedding_manager.engram_hasher
    replays = isinstance(runner.decode_cuda_graph_runner, DecodeCudaGraphRunner)
    if batch.forward_mode.is_idle() or replays or hasher is None:
        return
    get_row_service().early_start.begin(
        hasher,
        verify_input.draft_token,
        VerifyInputs(
            forward_mode=ForwardMode.TARGET_VERIFY,
            req_pool_indices=batch.req_pool_indices,
            positions=verify_input.positions,
            spec_info=verify_input,
        ),
    )


HOOK = Hook(
    target="sglang.srt.speculative.dflash_info.DFlashVerifyInput.prepare_for_verify",
    kind=HookKind.BEFORE,
    replacement=begin_before_batch,
    reason="the draft block is complete here; batch, metadata and the model's own hash come later",
    sglang_versions=("0.5.23",),
    fingerprint="cfe1f10b4da6169c",
    remove_when="SGLang reads Engram rows from disk",
)

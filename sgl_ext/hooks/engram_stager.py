"""EngramRowStager.from_model: prefill rows staged from packed files by look-ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sgl_ext.engram.row_service import get_row_service
from sgl_ext.hook import Hook, HookKind


def make_stager(stager_class: type, model: torch.nn.Module, hasher: Any, device: torch.device) -> Any:
    """Opens the store; on a GPU also makes step fetch and stager (a CPU engine reads in place)."""
    from sgl_ext.engram.embedding import StoredEngramEmbedding

    embeds = [module for module in model.modules() if isinstance(module, StoredEngramEmbedding)]
    if not embeds:
        return None
    service = get_row_service()
    from sglang.srt.runtime_context import get_server_args

    service.require_revision(Path(get_server_args().model_path))
    if device.type != "cuda":
        if get_server_args().enable_metrics:
            from sgl_ext.engram.metrics import CPU_PERIOD_S, EngramMetrics

            service.metrics = EngramMetrics(service, CPU_PERIOD_S)
        return None
    from sgl_ext.engram.prompt_stager import PromptStager
    from sgl_ext.engram.step_fetch import StepFetch

    service.step_fetch = StepFetch(service, device)
    for embed in embeds:
        embed.enable_scheduler_staging()
    service.stager = PromptStager(hasher, service, service.step_fetch, device)
    if get_server_args().enable_metrics:
        from sgl_ext.engram.metrics import EngramMetrics

        service.metrics = EngramMetrics(service)
    return service.stager


HOOK = Hook(
    target="sglang.srt.layers.engram_staging.EngramRowStager.from_model",
    kind=HookKind.REPLACE,
    replacement=make_stager,
    reason="SGLang's stager copies from its host tables; ours reads the packed files ahead of the forward",
    sglang_versions=("0.5.23",),
    fingerprint="4a3e97519be9ec4d",
    remove_when="SGLang reads Engram rows from disk",
)

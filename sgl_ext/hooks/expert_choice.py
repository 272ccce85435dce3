"""ModelRunner.load_model: the expert backend is chosen before the layers that use it exist."""

from __future__ import annotations

import os
from typing import Any

import torch

from sgl_ext.experts.boot_choice import choose_for_model, chosen, wanted_backend
from sgl_ext.hook import Hook, HookKind


def choose_before_build(runner: Any) -> None:
    """Once per process: the draft's runner, which loads second, uses the target's choice."""
    if chosen() is not None:
        return
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    wanted = wanted_backend(os.environ, runner.server_args.moe_runner_backend)
    if wanted is None:
        return
    choice = choose_for_model(
        runner.model_config.hf_text_config,
        parallel,
        device=torch.device(runner.device, runner.gpu_id) if runner.device == "cuda" else torch.device("cpu"),
        dtype=runner.model_config.dtype,
        group=parallel.tp_group.cpu_group if parallel.tp_size > 1 else None,
        wanted=wanted,
    )
    if runner.device == "cuda":
        _tell_sglang(choice.candidate.name)


def _tell_sglang(name: str) -> None:
    """SGLang's own decisions (top-k format, draft) follow its runner backend; ours takes the plain format."""
    from sglang.srt.layers.moe.utils import MoeRunnerBackend
    from sglang.srt.runtime_context import get_flags

    own = {"flashinfer_mxfp4": MoeRunnerBackend.FLASHINFER_MXFP4, "marlin": MoeRunnerBackend.MARLIN}
    moe = get_flags().moe
    moe.runner_backend = moe.speculative_runner_backend = own.get(name, MoeRunnerBackend.TRITON)


HOOK = Hook(
    target="sglang.srt.model_executor.model_runner.ModelRunner.load_model",
    kind=HookKind.BEFORE,
    replacement=choose_before_build,
    reason="SGLang picks a backend from the architecture alone; on sm_12x nobody has proved its kernels",
    sglang_versions=("0.5.23",),
    fingerprint="bf6781e45efd63b5",
    remove_when="SGLang checks its expert kernels at boot",
)

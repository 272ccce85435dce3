"""ModelRunner.load_model: kernels of experts and FP8 linear layers are chosen before such layers exist, and
those of the indexer and of attention proved.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from sgl_ext.dense_fp8.boot_choice import choose_for_rank, describe_dense
from sgl_ext.experts.boot_choice import choose_for_model, chosen, wanted_backend
from sgl_ext.hook import Hook, HookKind
from sgl_ext.indexer.boot_check import require_indexer
from sgl_ext.kv_layouts.boot_check import require_layout
from sgl_ext.kv_layouts.sglang_kernels import SGLANG_KERNELS
from sgl_ext.wo_a.boot_choice import choose_for_rank as choose_wo_a


def choose_before_build(runner: Any) -> None:
    """Once per process: the draft's runner, which loads second, uses the target's choices."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    is_cuda = runner.device == "cuda"
    device = torch.device(runner.device, runner.gpu_id) if is_cuda else torch.device("cpu")
    group = parallel.tp_group.cpu_group if parallel.tp_size > 1 else None
    wanted = wanted_backend(os.environ, runner.server_args.moe_runner_backend)
    if chosen() is None and wanted is not None:
        choice = choose_for_model(
            runner.model_config.hf_text_config,
            parallel,
            device=device,
            dtype=runner.model_config.dtype,
            group=group,
            wanted=wanted,
        )
        if is_cuda:
            _tell_sglang(choice.candidate.name)
    if is_cuda and not describe_dense():
        choose_for_rank(
            runner.model_config.hf_text_config,
            parallel,
            device=device,
            group=group,
            wanted=runner.server_args.fp8_gemm_runner_backend,
            quant=getattr(runner.model_config.hf_config, "quantization_config", None),
        )
    if is_cuda and torch.cuda.get_device_capability(device)[0] == 12:
        require_indexer(runner.model_config.hf_text_config, parallel, device=device, group=group)
        require_layout(
            SGLANG_KERNELS,
            runner.model_config.hf_text_config,
            parallel,
            device=device,
            group=group,
            has_draft=runner.server_args.speculative_algorithm == "DSPARK",
        )
        choose_wo_a(runner.model_config.hf_text_config, parallel, device=device, group=group)


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
    reason="SGLang picks backends from the architecture alone; on sm_12x nobody has proved their kernels",
    sglang_versions=("0.5.23",),
    fingerprint="bf6781e45efd63b5",
    remove_when="SGLang checks its kernels at boot",
)

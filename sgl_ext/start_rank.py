"""One rank's start: choose hooks, install them, build the model, prove the hooks, write the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from typing import Any

from sgl_ext.engine_environment import set_switches
from sgl_ext.forbidden_environment import refuse_forbidden
from sgl_ext.gpu_capability import check_capability
from sgl_ext.hook_sets import V41_MODEL_TYPES, HookSet, choose_hook_sets
from sgl_ext.install_hooks import install_hooks, load_hooks
from sgl_ext.model_config import read_model_config
from sgl_ext.rank_report import (
    describe_environment,
    read_versions,
    report_path,
    write_rank_report,
    write_refusal,
)
from sgl_ext.settings import Settings, read_settings
from sgl_ext.verify_hooks import verify_hooks


def describe_sequence_parallel(hook_sets: tuple[HookSet, ...], tp_size: int) -> dict[str, object] | None:
    """Mode and threshold of sequence parallelism in prefill; None where it is off."""
    if not {HookSet.SEQUENCE_PARALLEL, HookSet.GPU_SEQUENCE_PARALLEL} & set(hook_sets):
        return None
    from sgl_ext.sequence_parallel import read_sequence_parallel

    setting = read_sequence_parallel(os.environ, tp_size)
    assert setting is not None
    return asdict(setting)


def describe_kv_layout(hook_sets: tuple[HookSet, ...]) -> dict[str, object] | None:
    """The KV layout and its check; None where SGLang alone decides."""
    if HookSet.SM12X not in hook_sets:
        return None
    from sgl_ext.kv_layouts.boot_check import describe_layout

    return describe_layout()


def describe_dense_fp8(hook_sets: tuple[HookSet, ...]) -> dict[str, object] | None:
    """The choice of the FP8 linear layers' kernel and its check; None where SGLang alone decides."""
    if HookSet.SM12X not in hook_sets:
        return None
    from sgl_ext.dense_fp8.boot_choice import describe_dense

    return describe_dense()


def describe_wo_a_form(hook_sets: tuple[HookSet, ...]) -> dict[str, object] | None:
    """The form of wo_a and its check; None where SGLang alone decides."""
    if HookSet.SM12X not in hook_sets:
        return None
    from sgl_ext.wo_a.boot_choice import describe_wo_a

    return describe_wo_a()


def describe_indexer_check(hook_sets: tuple[HookSet, ...]) -> dict[str, object] | None:
    """The boot check of our indexer kernels; None where they are not in use."""
    if HookSet.SM12X not in hook_sets:
        return None
    from sgl_ext.indexer.boot_check import describe_indexer

    return describe_indexer()


def find_capability(settings: Settings, config: dict[str, Any] | None) -> tuple[int, int] | None:
    """CUDA capability of a GPU that is to serve V4.1, else None. Raises CapabilityError where it cannot."""
    if settings.cpu_engine or config is None or config.get("model_type") not in V41_MODEL_TYPES:
        return None
    import torch

    capability: tuple[int, int] = torch.cuda.get_device_capability()
    versions = read_versions()
    check_capability(capability, versions.get)
    return capability


def describe_experts(hook_sets: tuple[HookSet, ...]) -> dict[str, object] | None:
    """The boot check of the expert backends: choice, errors and times; None where SGLang's own runs."""
    if HookSet.EXPERTS not in hook_sets:
        return None
    from sgl_ext.experts.boot_choice import chosen  # brings torch

    choice = chosen()
    return None if choice is None else choice.as_json()


def describe_engram(hook_sets: tuple[HookSet, ...]) -> dict[str, object] | None:
    """How many verify graphs begin with the reads of their rows; None where SGLang has the tables."""
    if HookSet.ROW_STORE not in hook_sets:
        return None
    from sgl_ext.engram.row_service import get_row_service

    return {"verify_graphs_that_read_first": get_row_service().early_start.graphs_at_head}


def start_rank(build: Callable[[], None], scheduler: Any, server_args: Any) -> None:
    """Runs build() between installing the hooks and proving them.

    Any error is written as a refusal and raised; SGLang then logs it and ends the engine on every rank.
    """
    from sglang.srt.runtime_context import get_parallel

    settings = read_settings(os.environ)
    rank = get_parallel().tp_rank  # V4.1 and the launcher's plans have no PP or DP
    try:
        if settings.report_dir is not None:
            report_path(settings.report_dir, rank).unlink(missing_ok=True)  # an older run must not vouch
        _install_build_prove(settings, rank, build, scheduler, server_args)
    except Exception as error:
        write_refusal(settings, where=f"rank-{rank:02d}", error=error)
        raise


def _install_build_prove(
    settings: Settings, rank: int, build: Callable[[], None], scheduler: Any, server_args: Any
) -> None:
    config = read_model_config(server_args.model_path)
    hook_sets = choose_hook_sets(
        settings,
        config,
        server_args.tp_size,
        server_args.speculative_algorithm,
        find_capability(settings, config),
    )
    refuse_forbidden(os.environ, hook_sets)
    switches = set_switches(os.environ, hook_sets)
    installed = install_hooks(load_hooks(hook_sets), metadata.version("sglang"))
    build()
    verify_hooks(installed, scheduler)
    speculation: dict[str, object] | None = None
    if HookSet.SPECULATION in hook_sets:
        from sgl_ext.speculation.attach import attach_speculation

        speculation = asdict(attach_speculation(scheduler, server_args, settings))
    write_rank_report(
        settings,
        rank=rank,
        hook_sets=hook_sets,
        installed=installed,
        server_args=server_args,
        details={
            "switches": switches,
            "environment": describe_environment(os.environ),
            "experts": describe_experts(hook_sets),
            "sequence_parallel": describe_sequence_parallel(hook_sets, server_args.tp_size),
            "speculation": speculation,
            "kv_layout": describe_kv_layout(hook_sets),
            "dense_fp8": describe_dense_fp8(hook_sets),
            "indexer": describe_indexer_check(hook_sets),
            "wo_a": describe_wo_a_form(hook_sets),
            "engram": describe_engram(hook_sets),
        },
    )

"""NonCudaDecoderMixin.forward_hc_pre_from_prev: one layer of a long prefill chunk on this rank's rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.sequence_parallel import SharedState, read_sequence_parallel, share_rows


def run_on_own_rows(
    original: Callable[..., Any],
    layer: Any,
    positions: Any,
    state: Any,
    input_ids: Any,
    forward_batch: Any,
    input_ids_global: Any,
) -> Any:
    """Decode, verify and short chunks run as without, on whole rows."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    setting = read_sequence_parallel(os.environ, group.world_size)
    assert setting is not None, "the hook set is chosen by the same setting"
    num_tokens = positions.shape[0]
    is_prefill = forward_batch.forward_mode.is_extend_without_speculative()
    if not is_prefill or num_tokens < setting.from_tokens:
        whole = state.whole() if isinstance(state, SharedState) else state
        return original(layer, positions, whole, input_ids, forward_batch, input_ids_global)
    shared = share_rows(state, num_tokens, group, setting)
    shared = shared.follow(_run_attention(layer, shared, positions, forward_batch))
    return shared.follow(_run_experts(layer, shared, forward_batch, input_ids, input_ids_global))


def _run_attention(layer: Any, shared: SharedState, positions: Any, forward_batch: Any) -> Any:
    """As SGLang's run_attn_hc, between a gather and a reduce-scatter."""
    from sglang.srt.models import deepseek_v4_mhc as mhc

    layer._init_boundaries()
    own, rows = shared.own, shared.rows
    residual, precomputed = own.residual, own.stats
    x = rows.gather(mhc.combine(layer.attn_hc, own))
    with layer.self_attn.maybe_use_decode_attn_tp(forward_batch), _without_sum(layer.self_attn.wo_b):
        y = layer.self_attn(x=x, positions=positions, forward_batch=forward_batch, x_quant=None)
    return mhc.run_attn_post(
        layer.attn_hc,
        rows.add_up(y),
        residual,
        stats_stream=None,
        next=layer.local_boundary,
        world_size=layer.self_attn.attn_tp_size,
        precomputed=precomputed,
    )


def _run_experts(
    layer: Any, shared: SharedState, forward_batch: Any, input_ids: Any, input_ids_global: Any
) -> Any:
    """As SGLang's run_ffn_hc, between a gather and a reduce-scatter."""
    from sglang.srt.models import deepseek_v4_mhc as mhc

    own, rows = shared.own, shared.rows
    residual, precomputed = own.residual, own.stats
    x = rows.gather(mhc.combine(layer.ffn_hc, own))
    with _without_sum(layer.mlp):
        y = layer._run_moe_ffn_dp_sync(
            x, forward_batch, input_ids=input_ids, input_ids_global=input_ids_global
        )
    return mhc.run_moe_post(
        layer.ffn_hc,
        rows.add_up(y),
        residual,
        stats_stream=None,
        next=layer.next_boundary,
        world_size=layer.mlp.tp_size,
        precomputed=precomputed,
    )


@contextmanager
def _without_sum(module: Any) -> Iterator[None]:
    """The module returns this rank's part of its sum."""
    assert module.reduce_results, "another feature took this layer's sum already"
    module.reduce_results = False
    try:
        yield
    finally:
        module.reduce_results = True


def find_whole_rows(scheduler: Any) -> str | None:
    """Layers of another class, such as CUDA's, would run on whole rows."""
    from sglang.srt.models.deepseek_v4_platform_stage import NonCudaDecoderMixin

    for layer in scheduler.tp_worker.model_runner.model.model.layers:
        if not isinstance(layer, NonCudaDecoderMixin) or not layer.hc_pre_from_prev_sublayer:
            return f"a {type(layer).__name__}, which this hook does not split"
    return None


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4_platform_stage.NonCudaDecoderMixin.forward_hc_pre_from_prev",
    kind=HookKind.AROUND,
    replacement=run_on_own_rows,
    reason="SGLang refuses its own sequence parallelism for DeepSeek-V4 (--enable-layernorm-sp)",
    sglang_versions=("0.5.23",),
    fingerprint="5df6dda489d0c841",
    remove_when="--enable-layernorm-sp accepts DeepSeek-V4.1",
    check_effect=find_whole_rows,
)

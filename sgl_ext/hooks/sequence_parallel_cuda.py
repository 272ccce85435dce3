"""DeepseekV4CudaDecoderLayer.forward: one layer of a long prefill chunk on this rank's rows.

SGLang's CUDA layers leave their sums to a boundary that fuses them with what follows. Here each sublayer
returns this rank's part of its sum, which the reduce-scatter adds up, and the boundary is not used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.sequence_parallel import SharedState, read_sequence_parallel, share_rows


def run_on_own_rows(
    original: Callable[..., Any],
    layer: Any,
    positions: Any,
    hidden_states: Any,
    input_ids: Any,
    forward_batch: Any,
    input_ids_global: Any,
    **options: Any,
) -> Any:
    """Decode, verify, short chunks and the draft's layers run as without, on whole rows."""
    from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
    from sglang.srt.models import deepseek_v4_boundary as hc_boundary
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    setting = read_sequence_parallel(os.environ, group.world_size)
    assert setting is not None, "the hook set is chosen by the same setting"
    num_tokens = positions.shape[0]
    is_prefill = forward_batch.forward_mode.is_extend_without_speculative() and _is_target(layer)
    if not is_prefill or num_tokens < setting.from_tokens:
        if isinstance(hidden_states, SharedState):
            hidden_states = residual_batch.set_written(hidden_states.whole(), forward_batch)
        return original(
            layer, positions, hidden_states, input_ids, forward_batch, input_ids_global, **options
        )
    state = hc_boundary.materialize(hidden_states, forward_batch)
    shared = share_rows(state, num_tokens, group, setting)
    shared = shared.follow(_run_attention(layer, shared, positions, forward_batch))
    shared = shared.follow(_run_experts(layer, shared, forward_batch, input_ids, input_ids_global))
    return residual_batch.set_written(shared, forward_batch)


def _is_target(layer: Any) -> bool:
    """The draft's stages are subclasses with a forward of their own around this one."""
    from sglang.srt.models.deepseek_v4 import DeepseekV4CudaDecoderLayer

    return type(layer) is DeepseekV4CudaDecoderLayer


def _run_attention(layer: Any, shared: SharedState, positions: Any, forward_batch: Any) -> Any:
    from sglang.srt.models import deepseek_v4_mhc as mhc

    own, rows = shared.own, shared.rows
    residual, precomputed = own.residual, own.stats
    x = rows.gather(mhc.combine(layer.attn_hc, own))
    with layer.self_attn.maybe_use_decode_attn_tp(forward_batch):
        y = layer.self_attn(
            x=x, positions=positions, forward_batch=forward_batch, x_quant=None, defer_all_reduce=True
        )
    assert isinstance(y, mhc.AttnOutput), "attention must leave its sum over the ranks to the caller"
    return mhc.run_attn_post(
        layer.attn_hc,
        rows.add_up(y.partial),
        residual,
        stats_stream=None,
        next=mhc.make_boundary(layer.post_attention_layernorm, accepts_mxfp8=False, hc=layer.ffn_hc),
        world_size=layer.self_attn.attn_tp_size,
        precomputed=precomputed,
    )


def _run_experts(
    layer: Any, shared: SharedState, forward_batch: Any, input_ids: Any, input_ids_global: Any
) -> Any:
    from sglang.srt.models import deepseek_v4_mhc as mhc

    own, rows = shared.own, shared.rows
    residual, precomputed = own.residual, own.stats
    x = rows.gather(mhc.combine(layer.ffn_hc, own))
    assert not layer.mlp.reduce_results, "another feature took this layer's sum already"
    y = layer.mlp(x, forward_batch, input_ids=input_ids, input_ids_global=input_ids_global)
    return mhc.run_moe_post(
        layer.ffn_hc,
        rows.add_up(y),
        residual,
        stats_stream=None,
        next=None,  # the next layer is not known here
        world_size=layer.mlp.tp_size,
        precomputed=precomputed,
    )


def find_whole_rows(scheduler: Any) -> str | None:
    """What would run on whole rows, or needs rows that this hook does not hand on."""
    from sglang.srt.layers.moe import get_moe_a2a_backend
    from sglang.srt.runtime_context import get_parallel

    for layer in scheduler.tp_worker.model_runner.model.model.layers:
        if not _is_target(layer) or not layer.hc_pre_from_prev_sublayer:
            return f"a {type(layer).__name__}, which this hook does not split"
    parallel = get_parallel()
    if parallel.attn_dp_size != 1 or parallel.attn_cp_size != 1 or not get_moe_a2a_backend().is_none():
        return "attention data or context parallelism or an all-to-all of experts beside it"
    return None


HOOK = Hook(
    target="sglang.srt.models.deepseek_v4.DeepseekV4CudaDecoderLayer.forward",
    kind=HookKind.AROUND,
    replacement=run_on_own_rows,
    reason="SGLang refuses its own sequence parallelism for DeepSeek-V4 (--enable-layernorm-sp)",
    sglang_versions=("0.5.23",),
    fingerprint="119ec8cf2f4b24b8",
    remove_when="--enable-layernorm-sp accepts DeepSeek-V4.1",
    check_effect=find_whole_rows,
)

"""Runs one of SGLang's own MXFP4 expert methods on a layer that holds packed weights and nothing else.

The same class, preparation and kernel call as in the engine, so that a boot check proves what will be served.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from sgl_ext.experts.candidate import ExpertCall
from sgl_ext.experts.expert_weights import ExpertShape, PackedExperts


class NothingToNormalise:
    """Stands where SGLang's FP8 method does; on CUDA that one changes nothing in packed FP4 experts."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLayer:
    method: Any
    layer: torch.nn.Module
    shape: ExpertShape


def hold_weights(packed: PackedExperts, shape: ExpertShape, limit: float | None) -> torch.nn.Module:
    """A bare module with the parameters and fields of SGLang's FusedMoE that the methods read."""
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig

    layer = torch.nn.Module()
    for name, tensor, dtype in (
        ("w13_weight", packed.w13, torch.int8),
        ("w2_weight", packed.w2, torch.int8),
        ("w13_weight_scale_inv", packed.w13_scale, torch.float8_e8m0fnu),
        ("w2_weight_scale_inv", packed.w2_scale, torch.float8_e8m0fnu),
    ):
        layer.register_parameter(name, torch.nn.Parameter(tensor.view(dtype), requires_grad=False))
    fields: dict[str, object] = {
        "hidden_size": packed.hidden,
        "intermediate_size_per_partition": packed.width,
        "num_experts": shape.all_experts,
        "num_local_experts": packed.num_experts,
        "moe_tp_size": 1,  # the weights are a rank's shard already
        "moe_tp_rank": 0,
        "moe_ep_size": shape.all_experts // shape.num_experts,
        "moe_ep_rank": shape.first_expert // shape.num_experts,
        "orig_dtype": torch.bfloat16,
        "dispatcher": SimpleNamespace(
            num_experts=shape.all_experts, local_expert_mapping=map_to_local(shape, packed.w13.device)
        ),
    }
    for name, value in fields.items():
        setattr(layer, name, value)
    layer.moe_runner_config = MoeRunnerConfig(
        num_experts=shape.all_experts,
        num_local_experts=packed.num_experts,
        hidden_size=packed.hidden,
        intermediate_size_per_partition=packed.width,
        layer_id=0,
        top_k=shape.top_k,
        num_fused_shared_experts=0,
        params_dtype=torch.bfloat16,
        inplace=False,
        swiglu_limit=limit,
        layer=layer,
    )
    return layer


def map_to_local(shape: ExpertShape, device: torch.device) -> torch.Tensor | None:
    """The model's expert -> this rank's, -1 elsewhere, as SGLang's dispatcher has it with expert groups."""
    if shape.all_experts == shape.num_experts:
        return None
    mapping = torch.full((shape.all_experts,), -1, dtype=torch.int32, device=device)
    own = torch.arange(shape.num_experts, dtype=torch.int32, device=device)
    mapping[shape.first_expert : shape.first_expert + shape.num_experts] = own
    return mapping


def prepare_layer(
    method: Any, packed: PackedExperts, shape: ExpertShape, limit: float | None
) -> PreparedLayer:
    """The weights in the order that the method asks SGLang's loader for, then its own preparation."""
    if getattr(method, "load_up_proj_weight_first", False):
        packed = PackedExperts(
            w13=_swap_halves(packed.w13),
            w13_scale=_swap_halves(packed.w13_scale),
            w2=packed.w2,
            w2_scale=packed.w2_scale,
        )
    layer = hold_weights(packed, shape, limit)
    method.create_moe_runner(layer, layer.moe_runner_config)
    method.process_weights_after_loading(layer)
    return PreparedLayer(method=method, layer=layer, shape=shape)


def run_layer(prepared: PreparedLayer, call: ExpertCall, *, global_ids: bool) -> torch.Tensor:
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    ids = place_globally(call.topk_ids, prepared.shape) if global_ids else call.topk_ids
    logits = call.x.new_empty((call.x.shape[0], prepared.shape.all_experts), dtype=torch.float32)
    output = StandardDispatchOutput(
        hidden_states=call.x,
        hidden_states_scale=None,
        topk_output=StandardTopKOutput(call.topk_weights, ids.to(torch.int32), logits),
    )
    hidden: torch.Tensor = prepared.method.apply(prepared.layer, output).hidden_states
    return hidden


def place_globally(local_ids: torch.Tensor, shape: ExpertShape) -> torch.Tensor:
    """Local ids as the model's; -1 becomes an expert of another rank, which the kernel skips by itself."""
    if shape.all_experts == shape.num_experts:
        return local_ids
    elsewhere = (shape.first_expert + shape.num_experts) % shape.all_experts
    return torch.where(local_ids >= 0, local_ids + shape.first_expert, elsewhere)


def _swap_halves(tensor: torch.Tensor) -> torch.Tensor:
    first, second = tensor.chunk(2, dim=1)
    return torch.cat([second, first], dim=1)

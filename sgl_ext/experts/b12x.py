"""b12x W4A8 on sm_12x, which takes every expert width that 32 divides, 576 too. Not run on a GB10.

b12x has no SGLang integration; the plugin's own expert method calls this (own_method.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sgl_ext.experts.candidate import Device, ExpertCall, Presence
from sgl_ext.experts.expert_weights import ExpertShape, PackedExperts
from sgl_ext.experts.packages import find_packages

_MODE = "w4a8_mx"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedB12x:
    experts: Any
    shape: ExpertShape
    limit: float | None


class B12x:
    """Plans and scratch are shared by all layers of a shape: one per power of two of tokens, made at first
    use. SGLang warms each size before it captures a graph.
    """

    name = "b12x"
    error_bound = 0.08
    act_bits = 8

    def __init__(self) -> None:
        self._weight_plans: dict[ExpertShape, Any] = {}
        self._plans: dict[tuple[ExpertShape, int], tuple[Any, dict[str, torch.Tensor]]] = {}

    def probe(self, device: Device, shape: ExpertShape) -> Presence:
        found = find_packages({"b12x": "1.5.1", "nvidia-cutlass-dsl": "4.8.0", "triton": "3.0.0"})
        if device.capability not in ((12, 0), (12, 1)):
            return Presence(missing=f"needs sm_120 or sm_121, on {device}", versions=found.versions)
        if shape.hidden % 256 or shape.width % 32:
            missing = f"needs hidden % 256 = 0 and width % 32 = 0, got {shape.hidden} and {shape.width}"
            return Presence(missing=missing, versions=found.versions)
        return found

    def prepare(self, packed: PackedExperts, shape: ExpertShape, limit: float | None) -> PreparedB12x:
        """Repacks in place: packed is consumed."""
        from b12x.moe import fused_moe

        if shape not in self._weight_plans:
            self._weight_plans[shape] = self._plan_weights(shape)
        ones = torch.ones(shape.num_experts, dtype=torch.float32, device=packed.w13.device)
        experts = fused_moe.prepare_weights(
            plan=self._weight_plans[shape],
            params_dtype=torch.bfloat16,
            w1_fp4=packed.w13,
            w2_fp4=packed.w2,
            w1_blockscale=packed.w13_scale,
            w2_blockscale=packed.w2_scale,
            w1_global_scale=ones,
            w2_global_scale=ones,
            a1_gscale=ones,
            a2_gscale=ones,
        )
        return PreparedB12x(experts=experts, shape=shape, limit=limit)

    def _plan_weights(self, shape: ExpertShape) -> Any:
        from b12x.moe import fused_moe

        return fused_moe.plan_weights(
            quant_modes=_MODE,
            source_format="fp4_e8m0_k32",
            activation="silu",
            params_dtype=torch.bfloat16,
            num_experts=shape.num_experts,
            hidden_size=shape.hidden,
            intermediate_size=shape.width,
            w13_layout="w31",  # the gate's rows first, as in the checkpoint
        )

    def run(self, prepared: PreparedB12x, call: ExpertCall) -> torch.Tensor:
        from b12x.moe import fused_moe

        plan, scratch = self._plan(prepared, call)
        # Its smallest kernel is not known to skip id -1: such an entry becomes expert 0 with weight 0.
        here = call.topk_ids >= 0
        binding = fused_moe.bind(
            plan,
            scratch=scratch,
            a=call.x,
            experts=prepared.experts,
            topk_weights=torch.where(here, call.topk_weights, 0.0),
            topk_ids=call.topk_ids.clamp_min(0),
            output=torch.empty_like(call.x),
        )
        out: torch.Tensor = fused_moe.run(binding=binding)
        return out

    def _plan(self, prepared: PreparedB12x, call: ExpertCall) -> tuple[Any, dict[str, torch.Tensor]]:
        from b12x.moe import fused_moe

        capacity = 1 << max(call.x.shape[0] - 1, 0).bit_length()
        key = (prepared.shape, capacity)
        if key not in self._plans:
            plan = fused_moe.plan(
                fused_moe.Caps(
                    max_tokens=capacity,
                    num_topk=prepared.shape.top_k,
                    device=call.x.device,
                    weight_plan=self._weight_plans[prepared.shape],
                    quant_mode=_MODE,
                    swiglu_limit=prepared.limit,
                    deterministic_output=True,
                )
            )
            scratch = {
                spec.name: torch.empty(spec.shape, dtype=spec.dtype, device=call.x.device)
                for spec in plan.scratch_specs()
            }
            self._plans[key] = (plan, scratch)
        return self._plans[key]

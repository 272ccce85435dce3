"""MXFP4 experts from their definition, in fp32: what every other way is measured against.

Slow. Each product, activation and sum is fp32; nothing is rounded before the end, and a token's experts are
added in the order of its list.
"""

from __future__ import annotations

import torch

from sgl_ext.experts.candidate import Device, ExpertCall, Presence
from sgl_ext.experts.expert_weights import ExpertMatrices, ExpertShape, PackedExperts
from sgl_ext.kernels.clamped_swiglu import swiglu


class Reference:
    name = "reference"
    error_bound = 0.0
    act_bits = 32

    def probe(self, device: Device, shape: ExpertShape) -> Presence:
        return Presence(missing=None, versions={"torch": torch.__version__})

    def prepare(self, packed: PackedExperts, shape: ExpertShape, limit: float | None) -> ExpertMatrices:
        return packed

    def run(self, prepared: ExpertMatrices, call: ExpertCall) -> torch.Tensor:
        tokens, chosen = call.topk_ids.shape
        parts = call.x.new_zeros((tokens, chosen, call.x.shape[1]), dtype=torch.float32)
        for expert in range(prepared.num_experts):
            token, choice = (call.topk_ids == expert).nonzero(as_tuple=True)
            if token.numel():
                parts[token, choice] = run_expert(prepared, expert, call.x[token], call.limit)
        total = call.x.new_zeros((tokens, call.x.shape[1]), dtype=torch.float32)
        for choice in range(chosen):
            total += parts[:, choice] * call.topk_weights[:, choice].float().unsqueeze(-1)
        return total.to(call.x.dtype)


def run_expert(matrices: ExpertMatrices, expert: int, x: torch.Tensor, limit: float | None) -> torch.Tensor:
    """fp32 [n, H]: one expert's output for the rows of x, without its routing weight."""
    gate_up = x.float() @ matrices.gate_up(expert).float().T
    return swiglu(gate_up, limit) @ matrices.down(expert).float().T

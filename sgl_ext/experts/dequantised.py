"""Experts on weights that were dequantised once at load, grouped by expert: the CPU engine's path."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sgl_ext.experts.candidate import Device, ExpertCall, Presence
from sgl_ext.experts.expert_weights import DenseExperts, ExpertShape, PackedExperts, dequantise_experts
from sgl_ext.kernels.clamped_swiglu import swiglu


class Dequantised:
    name = "dequantised"
    error_bound = 0.02  # bf16 products; in fp32 it is a hundred times closer
    act_bits = 16

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def probe(self, device: Device, shape: ExpertShape) -> Presence:
        missing = (
            None if device.kind == "cpu" else f"four times the bytes of MXFP4, for a CPU only (on {device})"
        )
        return Presence(missing=missing, versions={"torch": torch.__version__})

    def prepare(self, packed: PackedExperts, shape: ExpertShape, limit: float | None) -> DenseExperts:
        return dequantise_experts(packed, self.dtype)

    def run(self, prepared: DenseExperts, call: ExpertCall) -> torch.Tensor:
        """Weighted and summed in fp32, rounded once. An expert of another rank (-1) adds nothing."""
        out = torch.zeros(call.x.shape, dtype=torch.float32)
        for expert in call.topk_ids.unique().tolist():
            if expert < 0:
                continue
            token, choice = (call.topk_ids == expert).nonzero(as_tuple=True)
            hidden = swiglu(F.linear(call.x[token], prepared.w13[expert]), call.limit)
            result = F.linear(hidden, prepared.w2[expert]).float()
            out.index_add_(0, token, result * call.topk_weights[token, choice].float().unsqueeze(-1))
        return out.to(call.x.dtype)

"""SwiGLU with clamped inputs: silu(min(gate, limit)) * clamp(up, -limit, limit)."""

from __future__ import annotations

import torch


def swiglu(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """gate_up [..., 2 * width] -> [..., width]; computed in fp32, rounded once to the input's type."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    gate = gate.float()
    return (gate * torch.sigmoid(gate) * up.float()).to(gate_up.dtype)

"""Checkpoint weights back to bf16, exactly: e4m3 and e2m1 times a power of two fit bf16's 8 mantissa bits."""

from __future__ import annotations

import torch

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def dequantise_fp8_blocks(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """weight e4m3 [n, k] with one e8m0 scale per block, the blocks tiling it evenly -> bf16 [n, k]."""
    rows, columns = weight.shape[0] // scale.shape[0], weight.shape[1] // scale.shape[1]
    factors = scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return (weight.float() * factors).to(torch.bfloat16)


def dequantise_fp4_pairs(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """packed int8 [n, k // 2], low nibble first, with one e8m0 scale per 32 along k -> bf16 [n, k]."""
    codes = packed.view(torch.uint8)
    table = _E2M1.to(packed.device)
    values = torch.stack([table[(codes & 0xF).long()], table[(codes >> 4).long()]], dim=-1).flatten(-2)
    blocks = values.unflatten(-1, (scale.shape[-1], -1)) * scale.float().unsqueeze(-1)
    return blocks.flatten(-2).to(torch.bfloat16)

"""The roundings that V4.1's caches apply to what is stored, as functions from values to values."""

from __future__ import annotations

import torch

_FP4_GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def round_fp4(values: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 value within +-6; halfway goes to the grid point of even index."""
    size = values.abs().clamp(max=6.0).double().unsqueeze(-1)
    distance = (size - _FP4_GRID).abs()
    # An odd grid point loses a tie; in fp64, where this is far below any fp32 difference and yet counts.
    odd = torch.arange(8) % 2 * 1e-12
    return _FP4_GRID[(distance + odd).argmin(-1)] * values.sign()


def round_index_vector(values: torch.Tensor) -> torch.Tensor:
    """Index queries and keys: e2m1 with one power-of-two scale per 32 values, rounded up from amax / 6."""
    blocks = values.float().unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) * (1 / 6))))
    return (round_fp4(blocks / scale) * scale).flatten(-2).to(values.dtype)


def round_latent(values: torch.Tensor) -> torch.Tensor:
    """Compressed KV: e2m1 with one e4m3 scale per 16 values, amax / 6 clamped to [2^-9, 448]."""
    blocks = values.float().unflatten(-1, (-1, 16))
    scale = (blocks.abs().amax(-1, keepdim=True) * (1 / 6)).clamp(2.0**-9, 448.0)
    scale = scale.to(torch.float8_e4m3fn).float()
    return (round_fp4(blocks / scale) * scale).flatten(-2).to(values.dtype)


def round_slot(values: torch.Tensor) -> torch.Tensor:
    """A 584-byte KV slot: 448 e4m3 values with one power-of-two scale per 64, 64 rotated values in bf16."""
    plain = values[..., :448].float().unflatten(-1, (-1, 64))
    scale = torch.exp2(torch.ceil(torch.log2(plain.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)))
    plain = (plain / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    return torch.cat([plain.flatten(-2).to(torch.bfloat16), values[..., 448:].to(torch.bfloat16)], dim=-1)

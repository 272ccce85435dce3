"""SGLang's V4 KV slot in plain PyTorch: 584 bytes a token, the format its GPU kernels read and write.

A page holds page_size data rows of 576 bytes (448 e4m3 values, 64 bf16 values of the rotated part), then
page_size scale rows of 8 bytes (7 power-of-two scales, one per 64 e4m3 values, and one unused byte).
N rows, D = 512 features.
"""

from __future__ import annotations

import torch

PLAIN_DIM = 448
ROTATED_DIM = 64
DATA_BYTES = PLAIN_DIM + 2 * ROTATED_DIM
SCALE_BYTES = 8
_TILE = 64
_E4M3_MAX = 448.0
_AMAX_FLOOR = 1e-4  # as the GPU kernel: keeps an all-zero tile's scale a normal number


def store_rows(cache: torch.Tensor, slots_N: torch.Tensor, rows_ND: torch.Tensor, page_size: int) -> None:
    """Quantises rows into cache (uint8 [pages, bytes]) at slots; a negative slot stores nothing."""
    keep = slots_N >= 0
    slots, rows = slots_N[keep].long(), rows_ND[keep].float()
    if slots.numel() == 0:
        return
    tiles = rows[:, :PLAIN_DIM].unflatten(1, (-1, _TILE))
    exponents = _ceil_exponent(tiles.abs().amax(-1).clamp_min(_AMAX_FLOOR) / _E4M3_MAX)
    codes = (tiles / _power_of_two(exponents).unsqueeze(-1)).clamp(-_E4M3_MAX, _E4M3_MAX)
    data = torch.cat(
        [
            codes.flatten(1).to(torch.float8_e4m3fn).view(torch.uint8),
            rows[:, PLAIN_DIM:].to(torch.bfloat16).contiguous().view(torch.uint8),
        ],
        dim=1,
    )
    flat = cache.view(-1)
    data_start, scale_start = _row_starts(cache, slots, page_size)
    flat[data_start[:, None] + torch.arange(DATA_BYTES, device=flat.device)] = data
    places = torch.arange(exponents.shape[1], device=flat.device)
    flat[scale_start[:, None] + places] = exponents.to(torch.uint8)


def load_rows(cache: torch.Tensor, slots_N: torch.Tensor, page_size: int) -> torch.Tensor:
    """The bf16 rows [N, D] at slots, as the GPU's dequantising gather gives them."""
    flat = cache.view(torch.uint8).view(-1)
    data_start, scale_start = _row_starts(cache.view(torch.uint8), slots_N.long(), page_size)
    data = flat[data_start[:, None] + torch.arange(DATA_BYTES, device=flat.device)]
    exponents = flat[scale_start[:, None] + torch.arange(PLAIN_DIM // _TILE, device=flat.device)]
    plain = data[:, :PLAIN_DIM].contiguous().view(torch.float8_e4m3fn).float().unflatten(1, (-1, _TILE))
    plain = (plain * _power_of_two(exponents.int()).unsqueeze(-1)).flatten(1)
    rotated = data[:, PLAIN_DIM:].contiguous().view(torch.bfloat16)
    return torch.cat([plain.to(torch.bfloat16), rotated], dim=1)


def _row_starts(
    cache: torch.Tensor, slots_N: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    page, place = slots_N // page_size, slots_N % page_size
    start = page * cache.shape[1]
    return start + place * DATA_BYTES, start + page_size * DATA_BYTES + place * SCALE_BYTES


def _ceil_exponent(values: torch.Tensor) -> torch.Tensor:
    """Biased exponent of the smallest power of two at or above each positive fp32 value."""
    bits = values.contiguous().view(torch.int32)
    return ((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0).int()


def _power_of_two(biased_exponent: torch.Tensor) -> torch.Tensor:
    return (biased_exponent.int() << 23).view(torch.float32)

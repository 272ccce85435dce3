"""SGLang's index-key slot on the CPU: 68 bytes, 128 e2m1 codes packed two a byte and 4 power-of-two scales.

A page holds page_size payload rows of 64 bytes, then page_size scale rows of 4 bytes. N keys of D = 128.
"""

from __future__ import annotations

import torch

KEY_DIM = 128
PAYLOAD_BYTES = 64
SCALE_BYTES = 4
_BLOCK = 32
_E2M1_MAX = 6.0
_SCALE_FLOOR = 1e-4
# Halfway points between neighbouring magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.
_MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def store_keys(
    cache: torch.Tensor, slots_N: torch.Tensor, keys_ND: torch.Tensor, page_size: int, *, ties_to_even: bool
) -> None:
    """Quantises keys into cache (uint8 [pages, page_size * 68]) at slots."""
    if slots_N.numel() == 0:
        return
    blocks = keys_ND.float().unflatten(1, (-1, _BLOCK))
    exponents = _ceil_exponent((blocks.abs().amax(-1) / _E2M1_MAX).clamp_min(_SCALE_FLOOR))
    scaled = blocks / (exponents << 23).view(torch.float32).unsqueeze(-1)
    codes = encode_e2m1(scaled, ties_to_even=ties_to_even).flatten(1)
    payload = codes[:, 0::2] | (codes[:, 1::2] << 4)
    slots = slots_N.long()
    start = slots // page_size * cache.shape[1]
    place = slots % page_size
    flat = cache.view(-1)
    flat[(start + place * PAYLOAD_BYTES)[:, None] + torch.arange(PAYLOAD_BYTES)] = payload
    scale_start = start + page_size * PAYLOAD_BYTES + place * SCALE_BYTES
    flat[scale_start[:, None] + torch.arange(SCALE_BYTES)] = exponents.to(torch.uint8)


def encode_e2m1(values: torch.Tensor, *, ties_to_even: bool) -> torch.Tensor:
    """uint8 codes, sign in bit 3; a value halfway between two goes to the even code, or else to the lower."""
    size = values.abs().clamp_max(_E2M1_MAX)
    code = torch.bucketize(size, _MIDPOINTS, right=ties_to_even)
    if ties_to_even:
        halfway = torch.isin(size, _MIDPOINTS)
        code = torch.where(halfway & (code % 2 == 1), code - 1, code)
    sign = (values < 0) & (code != 0)
    return (code | (sign.long() << 3)).to(torch.uint8)


def _ceil_exponent(values: torch.Tensor) -> torch.Tensor:
    bits = values.contiguous().view(torch.int32)
    exponent = ((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0).int()
    return exponent.clamp(1, 254)


def load_keys(
    cache: torch.Tensor, slots: torch.Tensor, page_size: int, code_values: torch.Tensor
) -> torch.Tensor:
    """bf16 keys [*slots.shape, D]; code_values gives the value of each of the 16 codes."""
    flat = cache.view(-1)
    start = slots.long() // page_size * cache.shape[1]
    place = slots.long() % page_size
    payload = flat[(start + place * PAYLOAD_BYTES).unsqueeze(-1) + torch.arange(PAYLOAD_BYTES)]
    codes = torch.stack([payload & 0xF, payload >> 4], dim=-1).flatten(-2)
    scale_start = start + page_size * PAYLOAD_BYTES + place * SCALE_BYTES
    exponents = flat[scale_start.unsqueeze(-1) + torch.arange(SCALE_BYTES)].int()
    scales = (exponents << 23).view(torch.float32).repeat_interleave(_BLOCK, dim=-1)
    return (code_values[codes.long()] * scales).to(torch.bfloat16)

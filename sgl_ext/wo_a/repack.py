"""wo_a as the checkpoint has it, from the bf16 that SGLang loads: e4m3 with a power of two per 32 x 32 block.

G groups, R output features of a group, D inputs of a group. SGLang dequantises wo_a while it loads, which is
exact, so the way back is exact too; whether it was is checked for every weight, not assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK = 32
_TOP_EXPONENT, _LARGEST = 8, 448.0  # of e4m3
_BIAS = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGroups:
    """codes: e4m3 [G, R, D]. exponents: uint8 [G, R / 32, D / 32], a scale is 2 ** (exponent - 127)."""

    codes: torch.Tensor
    exponents: torch.Tensor

    def dequantised(self) -> torch.Tensor:
        """bf16 [G, R, D], exact: e4m3 has 4 significant bits and bf16 has 8."""
        scale = torch.exp2(self.exponents.float() - _BIAS)
        grown = scale.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
        return (self.codes.float() * grown).to(torch.bfloat16)

    @property
    def num_bytes(self) -> int:
        return int(self.codes.nbytes + self.exponents.nbytes)


def repack(weight: torch.Tensor) -> PackedGroups | None:
    """weight: bf16 [G, R, D]. None where a block is no e4m3 times a power of two, or a size not whole blocks.

    The largest value of a block goes to e4m3's top exponent, or one below where it would lie above 448: the
    checkpoint's own scale is that one or a larger one, and codes that grow lose nothing.
    """
    groups, rows, inputs = weight.shape
    if rows % BLOCK or inputs % BLOCK or not weight.isfinite().all():
        return None
    tiles = weight.float().view(groups, rows // BLOCK, BLOCK, inputs // BLOCK, BLOCK)
    largest = tiles.abs().amax(dim=(2, 4))
    exponent = torch.frexp(largest).exponent - 1 - _TOP_EXPONENT
    exponent = exponent + (largest * torch.exp2(-exponent.float()) > _LARGEST).to(exponent.dtype)
    exponent = torch.where(largest > 0, exponent, 0).clamp(-_BIAS + 1, _BIAS)
    scale = torch.exp2(exponent.float())
    codes = (tiles / scale.unsqueeze(2).unsqueeze(4)).to(torch.float8_e4m3fn).view(weight.shape)
    packed = PackedGroups(codes=codes, exponents=(exponent + _BIAS).to(torch.uint8))
    return packed if torch.equal(packed.dequantised(), weight) else None

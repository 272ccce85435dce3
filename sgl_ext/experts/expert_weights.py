"""The routed experts of one layer on one rank, as the checkpoint has them (packed) or dequantised (dense).

E local experts, H hidden width, I expert width of this rank. w13 holds the gate's rows, then the up
projection's. A packed weight is e2m1, two a byte, low nibble first, with one e8m0 scale per 32 along the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from sgl_ext.kernels.dequantise import dequantise_fp4_pairs

GROUP = 32
ONE_E8M0 = 127  # the scale 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """num_experts and width are this rank's; first_expert and total_experts place it among the ranks."""

    num_experts: int
    hidden: int
    width: int
    top_k: int
    first_expert: int = 0
    total_experts: int = 0  # 0: all experts are here

    @property
    def all_experts(self) -> int:
        return self.total_experts or self.num_experts


class ExpertMatrices(Protocol):
    """What a plain implementation needs: one expert's two matrices in a floating type."""

    @property
    def num_experts(self) -> int: ...

    def gate_up(self, expert: int) -> torch.Tensor: ...

    def down(self, expert: int) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedExperts:
    """uint8 throughout: w13 [E, 2I, H/2], w13_scale [E, 2I, H/32], w2 [E, H, I/2], w2_scale [E, H, I/32]."""

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor

    def __post_init__(self) -> None:
        experts, rows, half = self.w13.shape
        width, hidden = rows // 2, half * 2
        wanted = {
            "w13_scale": (experts, rows, hidden // GROUP),
            "w2": (experts, hidden, width // 2),
            "w2_scale": (experts, hidden, width // GROUP),
        }
        for name, shape in wanted.items():
            seen = tuple(getattr(self, name).shape)
            if seen != shape:
                raise ValueError(
                    f"{name} must have shape {shape} beside w13 {(experts, rows, half)}, got {seen}."
                )
        if hidden % GROUP or width % GROUP:
            raise ValueError(f"Expert widths must be multiples of {GROUP}, got {hidden} and {width}.")

    @property
    def num_experts(self) -> int:
        return int(self.w13.shape[0])

    @property
    def width(self) -> int:
        return int(self.w13.shape[1]) // 2

    @property
    def hidden(self) -> int:
        return int(self.w13.shape[2]) * 2

    def gate_up(self, expert: int) -> torch.Tensor:
        """bf16 [2I, H], exact."""
        return _dequantise(self.w13[expert], self.w13_scale[expert])

    def down(self, expert: int) -> torch.Tensor:
        """bf16 [H, I], exact."""
        return _dequantise(self.w2[expert], self.w2_scale[expert])


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseExperts:
    """w13 [E, 2I, H] and w2 [E, H, I] in the engine's type, as the CPU engine holds them."""

    w13: torch.Tensor
    w2: torch.Tensor

    @property
    def num_experts(self) -> int:
        return int(self.w13.shape[0])

    def gate_up(self, expert: int) -> torch.Tensor:
        return self.w13[expert]

    def down(self, expert: int) -> torch.Tensor:
        return self.w2[expert]


def dequantise_experts(packed: PackedExperts, dtype: torch.dtype) -> DenseExperts:
    """All experts at once; exact in bf16 and fp32."""
    experts = range(packed.num_experts)
    return DenseExperts(
        w13=torch.stack([packed.gate_up(expert) for expert in experts]).to(dtype),
        w2=torch.stack([packed.down(expert) for expert in experts]).to(dtype),
    )


def pad_width(packed: PackedExperts, multiple: int) -> PackedExperts:
    """The same experts with I grown to a multiple: zero weights with scale 1.0, so outputs do not change.

    A padded hidden value is silu(0) * 0 = 0, and meets a zero column of w2.
    """
    width = packed.width
    padded = -(-width // multiple) * multiple
    if padded == width:
        return packed
    extra = padded - width
    if extra % GROUP:
        raise ValueError(f"Padding must be whole groups of {GROUP}, got {width} to {padded}.")
    return PackedExperts(
        w13=_pad_halves(packed.w13, extra, 0),
        w13_scale=_pad_halves(packed.w13_scale, extra, ONE_E8M0),
        w2=torch.nn.functional.pad(packed.w2, (0, extra // 2)),
        w2_scale=torch.nn.functional.pad(packed.w2_scale, (0, extra // GROUP), value=ONE_E8M0),
    )


def _pad_halves(tensor: torch.Tensor, extra: int, fill: int) -> torch.Tensor:
    """Rows after the gate's and after the up projection's."""
    halves = [torch.nn.functional.pad(half, (0, 0, 0, extra), value=fill) for half in tensor.chunk(2, dim=1)]
    return torch.cat(halves, dim=1)


def _dequantise(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return dequantise_fp4_pairs(weight, scale.view(torch.float8_e8m0fnu))

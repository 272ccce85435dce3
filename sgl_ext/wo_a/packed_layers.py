"""The wo_a weights that are kept in FP8, and their product; the weight of a layer is found by its address."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from sgl_ext.wo_a.repack import PackedGroups, repack

# Above, bf16 weights are written out and SGLang's own product runs: the same bits as without.
KERNEL_ROWS = 256

Product = Callable[..., torch.Tensor]


@dataclass(slots=True)
class PackedLayers:
    """by_address: of the codes. plain: bf16 for one layer at a time, made before any graph is captured."""

    by_address: dict[int, PackedGroups] = field(default_factory=dict)
    plain: torch.Tensor | None = None

    def add(self, packed: PackedGroups) -> None:
        self.by_address[packed.codes.data_ptr()] = packed
        if self.plain is None:
            self.plain = torch.empty_like(packed.codes, dtype=torch.bfloat16)
        assert self.plain.shape == packed.codes.shape, "every layer of a rank has the same shape"

    def multiply(
        self, original: Product, rows: torch.Tensor, packed: PackedGroups, *args: Any, **how: Any
    ) -> torch.Tensor:
        """rows: bf16 [T, G, D] -> bf16 [T, G, R]. original: SGLang's product with bf16 weights, which takes
        the other arguments.
        """
        from sgl_ext.wo_a.kernels import dequantise_groups, multiply_groups

        if rows.shape[0] <= KERNEL_ROWS:
            return multiply_groups(rows, packed)
        assert self.plain is not None
        return original(rows, dequantise_groups(packed, self.plain), *args, **how)


@functools.cache
def packed_layers() -> PackedLayers:
    return PackedLayers()


def pack_layers(layers: Any) -> str | None:
    """Puts FP8 in place of every bf16 wo_a, or of none; says which layer's is no e4m3 with a power of two for
    each 32 x 32 block. layers: SGLang's decoder layers.
    """
    found: list[tuple[Any, PackedGroups]] = []
    for idx, layer in enumerate(layers):
        attention = layer.self_attn
        packed = repack(attention.wo_a.weight.data.view(attention.n_local_groups, attention.o_lora_rank, -1))
        if packed is None:
            return f"wo_a of layer {idx} is no e4m3 with a power of two for each 32 x 32 block"
        found.append((attention.wo_a, packed))
    for module, packed in found:
        codes = packed.codes.view(module.weight.shape)
        module.weight = torch.nn.Parameter(codes, requires_grad=False)
        packed_layers().add(packed)
    return None

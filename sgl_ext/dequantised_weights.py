"""A checkpoint's tensors with every FP8 and MXFP4 weight as exact bf16; Engram tables pass unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from sgl_ext.errors import SettingError
from sgl_ext.kernels.dequantise import dequantise_fp4_pairs, dequantise_fp8_blocks

_PACKED = (torch.float8_e4m3fn, torch.int8)


def dequantise_stream(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names as they come; a weight waits for its scale (or the reverse) and is yielded as bf16.

    Raises SettingError at the end where a weight or scale has no partner.
    """
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        stem, _, part = name.rpartition(".")
        is_half = part == "scale" or (part == "weight" and tensor.dtype in _PACKED)
        if not is_half or stem.endswith(".engram.embed"):
            yield name, tensor
            continue
        partner = waiting.pop(f"{stem}.{'weight' if part == 'scale' else 'scale'}", None)
        if partner is None:
            waiting[name] = tensor
            continue
        weight, scale = (partner, tensor) if part == "scale" else (tensor, partner)
        unpack = dequantise_fp4_pairs if weight.dtype == torch.int8 else dequantise_fp8_blocks
        yield f"{stem}.weight", unpack(weight, scale)
    if waiting:
        raise SettingError(
            f"Every quantised weight must have its scale, got only {sorted(waiting)[0]} "
            f"and {len(waiting) - 1} more.",
            hint="compare the folder with model.safetensors.index.json; copy the missing shard again",
        )


def widen_bf16(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Some layers are bf16 by name; in an fp32 engine they must multiply with fp32 activations."""
    for parameter in model.parameters():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.to(dtype)

"""A checkpoint folder as plain tensors: official names, quantised weights multiplied out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

# The 16 values of an e2m1 code; the high bit is the sign.
_FP4_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_FP4_TABLE = torch.tensor(_FP4_VALUES + [-value for value in _FP4_VALUES])


def read_text_config(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    text: dict[str, Any] = config["text_config"]
    return text


def read_weights(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Name -> tensor in dtype (F32 tensors stay fp32, Engram tables stay packed), scales folded in."""
    raw: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            raw.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping
    weights = {}
    for name, tensor in raw.items():
        if ".engram.embed." in name or name.endswith(".scale"):
            if ".engram.embed." in name:
                weights[name] = tensor
            continue
        scale = raw.get(name.removesuffix("weight") + "scale") if name.endswith(".weight") else None
        if scale is not None:
            tensor = multiply_out(tensor, scale)
        weights[name] = tensor if tensor.dtype == torch.float32 and scale is None else tensor.to(dtype)
    return weights


def multiply_out(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp32 [n, k] from e4m3 with 32 x 32 scales, or from int8 pairs of e2m1 with 1 x 32 scales."""
    if weight.dtype == torch.int8:
        bits = weight.to(torch.int16) & 0xFF
        values = torch.empty(weight.shape[0], 2 * weight.shape[1])
        values[:, 0::2] = _FP4_TABLE[(bits % 16).long()]
        values[:, 1::2] = _FP4_TABLE[(bits // 16).long()]
        rows = 1
    else:
        values, rows = weight.float(), 32
    factor = torch.pow(2.0, scale.view(torch.uint8).float() - 127)
    return values * factor.repeat_interleave(rows, 0).repeat_interleave(32, 1)

"""Small lists of numbers to the device, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch


def to_device(values: list[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """From pinned memory: a copy from pageable memory waits for all that the GPU was given before."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)

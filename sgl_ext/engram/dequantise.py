"""Payloads of all ranks -> the bf16 rows [tokens, columns, dim] that SGLang's own lookup gives, bit for bit.

Column c is of rank c % tp (the packed files' round-robin deal), so the order is restored here.
With tp > 1 SGLang sums one real and tp - 1 zero values, which turns -0 into +0; so does this.
"""

from __future__ import annotations

import torch

from sgl_ext.engram.payload import BLOCK, PayloadLayout

_E8M0_ZERO = 2.0**-127  # scale byte 0; there is no zero scale


def dequantise(
    gathered: torch.Tensor, layout: PayloadLayout, *, tp: int, num_columns: int
) -> tuple[torch.Tensor, list[int]]:
    """CPU: (rows bf16 [tokens, columns, dim], status of each rank). gathered: uint8, tp payloads in a row."""
    payloads = gathered.view(tp, layout.total_bytes)
    status = payloads[:, layout.status_offset : layout.status_offset + 8].contiguous().view(torch.int64)
    weight = payloads[:, : layout.scale_offset].contiguous().view(torch.float8_e4m3fn)
    scales_end = layout.scale_offset + layout.num_ids * (layout.dim // BLOCK)
    exponent = payloads[:, layout.scale_offset : scales_end].contiguous().to(torch.int32)
    scale = (exponent << 23).view(torch.float32)
    scale = torch.where(exponent == 0, torch.tensor(_E8M0_ZERO, dtype=torch.float32), scale)
    values = weight.float().view(tp, layout.num_ids, -1, BLOCK) * scale.view(tp, layout.num_ids, -1, 1)
    per_rank = num_columns // tp
    rows = values.view(tp, -1, per_rank, layout.dim).permute(1, 2, 0, 3).reshape(-1, num_columns, layout.dim)
    if tp > 1:
        rows = torch.where(rows == 0, torch.zeros_like(rows), rows)
    return rows.to(torch.bfloat16), [int(value) for value in status.view(-1)]

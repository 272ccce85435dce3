"""Rows of any number of ids, read while the caller waits: CPU engines, and what no look-ahead could stage."""

from __future__ import annotations

import errno

import numpy as np
import torch
from engram._core import MAX_IDS_PER_SUBMIT

from engram.errors import EngramError, ReadError
from engram.row_source import RowPlanes
from sgl_ext.engram.payload import PayloadLayout
from sgl_ext.engram.row_service import RowService


def read_payload(service: RowService, layer: int, hash_ids: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    """hash_ids [..., columns] on the CPU -> this rank's payload (uint8).

    A failed read is told in the payload's status, not raised: the other ranks wait for this payload.
    """
    own = hash_ids.reshape(-1, service.num_columns)[:, service.rank :: service.tp]
    ids = np.ascontiguousarray(own.numpy(), dtype=np.int64).reshape(-1)
    layout = service.layout(hash_ids.numel() // service.num_columns)
    payload = torch.empty(layout.total_bytes, dtype=torch.uint8, pin_memory=pinned)
    payload[layout.status_offset :].zero_()
    status = _read_into(service, layer, ids, payload, layout)
    payload[layout.status_offset : layout.status_offset + 8].view(torch.int64)[0] = status
    return payload


def _read_into(
    service: RowService, layer: int, ids: np.ndarray, payload: torch.Tensor, layout: PayloadLayout
) -> int:
    plane = payload.numpy()
    scale_bytes = service.store.shape.scale_bytes
    for start in range(0, len(ids), MAX_IDS_PER_SUBMIT):
        part = ids[start : start + MAX_IDS_PER_SUBMIT]
        first_scale = layout.scale_offset + start * scale_bytes
        out = RowPlanes(
            weight=plane[start * layout.dim : (start + len(part)) * layout.dim],
            scale=plane[first_scale : first_scale + len(part) * scale_bytes],
        )
        try:
            service.store.submit(service.tables[layer].layer_id, part, out).wait()
        except ReadError as error:
            return -(error.errno or errno.EIO)
        except EngramError:
            return -errno.EINVAL
    return 0

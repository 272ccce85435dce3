"""Rows on their way into host memory, any number of them: CPU engines, and what no look-ahead could stage."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from engram._core import MAX_IDS_PER_SUBMIT

from engram.errors import EngramError, ReadError
from engram.row_source import RowPlanes

if TYPE_CHECKING:
    from sgl_ext.engram.row_service import RowService


class HostRead:
    """One layer's rows for one rank; the reads are under way once it is made.

    A failed read is told in the payload's status, not raised: the other ranks wait for this payload.
    """

    def __init__(self, service: RowService, layer: int, hash_ids: torch.Tensor, *, pinned: bool) -> None:
        """hash_ids [..., columns] on the CPU; all columns, of which this rank's are read."""
        own = hash_ids.reshape(-1, service.num_columns)[:, service.rank :: service.tp]
        self._ids = np.ascontiguousarray(own.numpy(), dtype=np.int64).reshape(-1)
        self._layout = service.layout(hash_ids.numel() // service.num_columns)
        self._payload = torch.empty(self._layout.total_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._payload[self._layout.status_offset :].zero_()
        self._status = 0
        self._tickets: list[Any] = []
        try:
            self._submit(service, layer)
        except EngramError:
            self._status = -errno.EINVAL

    def wait(self) -> torch.Tensor:
        """This rank's payload (uint8) with its status, once every row is there or one has failed."""
        for ticket in self._tickets:
            try:
                ticket.wait()
            except ReadError as error:
                self._status = self._status or -(error.errno or errno.EIO)
            except EngramError:
                self._status = self._status or -errno.EINVAL
        offset = self._layout.status_offset
        self._payload[offset : offset + 8].view(torch.int64)[0] = self._status
        return self._payload

    def drop(self) -> None:
        """Nobody will wait: what is not read yet is not read any more."""
        for ticket in self._tickets:
            ticket.cancel()

    def _submit(self, service: RowService, layer: int) -> None:
        plane = self._payload.numpy()
        dim, scale_bytes = self._layout.dim, service.store.shape.scale_bytes
        for start in range(0, len(self._ids), MAX_IDS_PER_SUBMIT):
            part = self._ids[start : start + MAX_IDS_PER_SUBMIT]
            first_scale = self._layout.scale_offset + start * scale_bytes
            out = RowPlanes(
                weight=plane[start * dim : (start + len(part)) * dim],
                scale=plane[first_scale : first_scale + len(part) * scale_bytes],
            )
            self._tickets.append(service.store.submit(service.tables[layer].layer_id, part, out))

"""Prefill rows: hashed on the host when the batch is scheduled, read while earlier work runs on the GPU.

Takes the place of SGLang's EngramRowStager (0.5.23). The scheduler's thread only hashes and launches; a host
function on the copy stream waits for the rows, so chunk i + 1 is read while chunk i computes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from sglang.srt.layers.engram_staging import EngramRowStager

import sgl_ext.engram._native as _native
from sgl_ext.engram.admission import AdmissionLookahead
from sgl_ext.engram.cuda_driver import copy_to_device, launch_host_function
from sgl_ext.engram.payload import PayloadLayout
from sgl_ext.engram.row_service import RowService
from sgl_ext.engram.step_fetch import StepFetch

# One part a layer: duplicates inside a chunk are read once, and the drive sees the whole chunk sorted.
_WHOLE_CHUNK = 1 << 62


class PromptStager(EngramRowStager):  # type: ignore[misc]
    """stage(batch) as the class it replaces: a list of (payload, layout, event), one per Engram layer."""

    def __init__(self, hasher: Any, service: RowService, fetch: StepFetch, device: torch.device) -> None:
        self.hasher = hasher
        self.device = device
        self.copy_stream = torch.cuda.Stream(device)
        self.service = service
        self.lookahead = AdmissionLookahead(service, hasher)
        self._fetch = fetch
        # Chunks under way, oldest first: copied when, (request, end of its chunk), what must stay alive.
        self._under_way: deque[tuple[torch.cuda.Event, list[tuple[str, int]], list[Any]]] = deque()

    def stage(self, batch: Any) -> list[tuple[torch.Tensor, PayloadLayout, torch.cuda.Event]] | None:
        if not batch.forward_mode.is_extend_without_speculative():
            return None
        windows = self._windows(batch)
        if windows is None:
            return None
        self.poll()
        ids, _ = self.hasher.hash_windows(*windows)
        ends = [
            (req.rid, prefix + extend)
            for req, prefix, extend in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
        ]
        return self._read(ids, ends)

    def poll(self) -> None:
        """Tells the look-ahead which chunks have their rows; before that, they must not be dropped."""
        # The newest finished one stays: a pool thread may still be leaving its step.
        while len(self._under_way) > 1 and self._under_way[0][0].query():
            _, ends, _ = self._under_way.popleft()
            self._tell(ends)
        if self._under_way and self._under_way[0][0].query():
            self._tell(self._under_way[0][1])
            self._under_way[0][1].clear()

    @property
    def under_way_ids(self) -> set[str]:
        return {request_id for _, ends, _ in self._under_way for request_id, _ in ends}

    def _tell(self, ends: list[tuple[str, int]]) -> None:
        for request_id, end in ends:
            self.lookahead.consumed(request_id, end)

    def _read(
        self, ids: torch.Tensor, ends: list[tuple[str, int]]
    ) -> list[tuple[torch.Tensor, PayloadLayout, torch.cuda.Event]]:
        service = self.service
        layout = service.layout(ids.shape[0])
        own = ids[:, :, service.rank :: service.tp].transpose(0, 1).contiguous()
        host = torch.empty(len(service.tables), layout.total_bytes, dtype=torch.uint8, pin_memory=True)
        layers = []
        for layer, table in enumerate(service.tables):
            base = host[layer].data_ptr()
            layers.append(
                (
                    service.store.reader_address(table.layer_id),
                    own[layer].data_ptr(),
                    layout.num_ids,
                    base,
                    base + layout.scale_offset,
                    base + layout.status_offset,
                )
            )
        step = _native.Step(self._fetch.pool, layers, part_ids=_WHOLE_CHUNK)
        staged = []
        with torch.cuda.stream(self.copy_stream):
            raw = self.copy_stream.cuda_stream
            for layer in range(len(service.tables)):
                launch_host_function(raw, _native.RUN_NODE_ADDRESS, step.node_address(layer))
                payload = torch.empty(layout.total_bytes, dtype=torch.uint8, device=self.device)
                copy_to_device(raw, payload.data_ptr(), host[layer].data_ptr(), layout.total_bytes)
                copied = torch.cuda.Event()
                copied.record(self.copy_stream)
                staged.append((payload, layout, copied))
        self._under_way.append((staged[-1][2], ends, [own, host, step]))
        return staged

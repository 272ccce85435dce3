"""Decode and verify rows on the GPU path: started by the hash on a forked stream, joined at each layer.

Capture-safe: pinned buffers and kernel arguments are fixed per number of tokens. On the forked stream: row
ids to pinned memory, then per layer a native host node (no GIL, see native/) that fills the pinned payload
and its copy to the GPU. On the main stream, at the layer: exchange between ranks and dequantisation.
"""

from __future__ import annotations

from typing import Any

import torch
from engram._core import READ_NOW_ADDRESS

import sgl_ext.engram._native as _native
from sgl_ext.engram.cuda_driver import copy_to_device, launch_host_function
from sgl_ext.engram.gpu_kernels import WAIT_BUCKETS, dequantise_gathered, export_ids, stamp
from sgl_ext.engram.row_service import RowService

# Rows that one thread reads or copies at a time. Small parts keep the layers in order: with as many threads
# as here, some 160 reads are in flight, and a later layer's begin when the first layer's run out. Large parts
# would let all layers share the drive, and the first layer, which has the least slack, would wait for all.
_PART_IDS = 32


class StepFetch:
    """One per rank. Not thread-safe: the scheduler's thread launches forwards."""

    def __init__(self, service: RowService, device: torch.device) -> None:
        self._service = service
        self._max_tokens = service.settings.max_step_tokens
        num_layers = len(service.tables)
        self._max_layout = service.layout(self._max_tokens)
        self._ids = torch.zeros(num_layers, self._max_layout.num_ids, dtype=torch.int64, pin_memory=True)
        self._host = torch.zeros(num_layers, self._max_layout.total_bytes, dtype=torch.uint8, pin_memory=True)
        self._device = torch.zeros(num_layers, self._max_layout.total_bytes, dtype=torch.uint8, device=device)
        self._errors = torch.zeros(num_layers, dtype=torch.int64, pin_memory=True)
        self._stamps = torch.zeros(num_layers, dtype=torch.int64, device=device)
        self.waits = torch.zeros(num_layers, WAIT_BUCKETS, dtype=torch.int32, device=device)
        self._stream = torch.cuda.Stream(device)
        shape = service.store.shape
        self.pool = _native.ReaderPool(
            read_now_address=READ_NOW_ADDRESS,
            weight_bytes=shape.weight_bytes,
            scale_bytes=shape.scale_bytes,
            num_threads=service.settings.read_threads,
        )
        # Graphs hold the steps' addresses for as long as the process lives.
        self._steps: dict[int, Any] = {}
        self._started: dict[int, torch.cuda.Event] = {}
        self._started_tokens = 0

    def error_address(self, layer: int) -> int:
        return int(self._errors.data_ptr()) + 8 * layer

    def find_error(self) -> tuple[int, int] | None:
        """(layer, -errno) of a failed read, once the GPU has seen it; stays until the process ends."""
        for layer, status in enumerate(self._errors.tolist()):
            if status != 0:
                return layer, status
        return None

    def start(self, hash_ids: torch.Tensor) -> None:
        """hash_ids [tokens, layers, columns]. Where they exceed the buffers, layers read for themselves."""
        self._started.clear()
        tokens = hash_ids.shape[0]
        if tokens == 0 or tokens > self._max_tokens:
            return
        step = self._step(tokens)
        layout = self._service.layout(tokens)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            export_ids(hash_ids, self._ids, rank=self._service.rank, tp=self._service.tp)
            raw = self._stream.cuda_stream
            for layer in range(len(self._service.tables)):
                launch_host_function(raw, _native.RUN_NODE_ADDRESS, step.node_address(layer))
                copy_to_device(
                    raw, self._device[layer].data_ptr(), self._host[layer].data_ptr(), layout.total_bytes
                )
                arrived = torch.cuda.Event()
                arrived.record(self._stream)
                self._started[layer] = arrived
        self._started_tokens = tokens

    def has_started(self, layer: int, indices: torch.Tensor) -> bool:
        return layer in self._started and indices.shape[0] == self._started_tokens

    def join(self, layer: int, out: torch.Tensor) -> None:
        """Waits on the GPU for this layer's payload and writes the rows to out [tokens, columns, dim]."""
        service = self._service
        layout = service.layout(self._started_tokens)
        stamp(self._stamps[layer : layer + 1])
        torch.cuda.current_stream().wait_event(self._started.pop(layer))
        dequantise_gathered(
            service.gather(self._device[layer, : layout.total_bytes]),
            out,
            layout,
            tp=service.tp,
            num_columns=service.num_columns,
            error_address=self.error_address(layer),
            stamp_and_waits=(self._stamps[layer : layer + 1], self.waits[layer]),
        )

    def _step(self, tokens: int) -> Any:
        if tokens not in self._steps:
            layout = self._service.layout(tokens)
            store = self._service.store
            layers = []
            for layer, table in enumerate(self._service.tables):
                base = self._host[layer].data_ptr()
                layers.append(
                    (
                        store.reader_address(table.layer_id),
                        self._ids[layer].data_ptr(),
                        layout.num_ids,
                        base,
                        base + layout.scale_offset,
                        base + layout.status_offset,
                    )
                )
            self._steps[tokens] = _native.Step(self.pool, layers, part_ids=_PART_IDS)
        return self._steps[tokens]

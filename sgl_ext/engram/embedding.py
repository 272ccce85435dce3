"""EngramEmbedding without a table: the rows come from this rank's packed file.

Takes the place of sglang.srt.layers.engram.EngramEmbedding (SGLang 0.5.23), for GPU and CPU engines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sgl_ext.engram.dequantise import dequantise
from sgl_ext.engram.host_read import HostRead
from sgl_ext.engram.open_rank_store import EngramTable
from sgl_ext.engram.payload import BLOCK, PayloadLayout
from sgl_ext.engram.row_service import get_row_service
from sgl_ext.errors import SettingError


class StoredEngramEmbedding(nn.Module):  # type: ignore[misc]
    """Same calls and results as the class it replaces; holds no rows.

    On a GPU a step's rows are fetched by the StepFetch that the hash started (decode, verify), or were staged
    by the scheduler (prefill). On a CPU engine a verify's reads are under way when its forward begins
    (early_start.py). Everything else is read while the caller waits.
    """

    def __init__(self, num_embeddings: int, dim: int, layer_id: int, column_bounds: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = dim
        self.num_embeddings = num_embeddings
        self.service = get_row_service()
        self.layer = self.service.add_table(
            EngramTable(layer_id=layer_id, num_rows=num_embeddings, dim=dim), len(column_bounds) - 1
        )
        # The attributes that SGLang reads of the class (engram_staging, deepseek_v4).
        self.tp_size = self.service.tp
        self.row_start = 0
        self.rows = 0
        self.host_table = None
        self.peer = None
        self._sort_host_reads = False
        self.staged_by_scheduler = False
        self.weight = nn.Parameter(torch.empty(0, dim, dtype=torch.float8_e4m3fn), requires_grad=False)
        self.scale = nn.Parameter(
            torch.empty(0, dim // BLOCK, dtype=torch.float8_e8m0fnu), requires_grad=False
        )
        self.weight.weight_loader = self._check_table
        self.scale.weight_loader = self._check_table

    def _check_table(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        """The loader's tensor is a mapping of the checkpoint: its shape is looked at, its pages are not."""
        wanted = (self.num_embeddings, param.shape[1])
        if tuple(loaded_weight.shape) != wanted:
            raise SettingError(
                f"The checkpoint's Engram table must have shape {wanted}, got {tuple(loaded_weight.shape)}.",
                hint="config.json and weights are of different models; fetch the model again",
            )

    @property
    def shared_host_table_without_ats(self) -> bool:
        return False

    def enable_scheduler_staging(self) -> None:
        """Extend rows are staged before the forward, so they are looked up between graph segments."""
        self.staged_by_scheduler = True

    def finish_load(self, label: str) -> None:
        """Opens the store, so that a damaged file ends the start and not the first request."""
        _ = self.service.store

    def new_rows(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.empty(*indices.shape, self.dim, dtype=torch.bfloat16, device=indices.device)

    def forward(
        self, indices: torch.Tensor, forward_batch: Any = None, *, cp_all_tokens: bool = False
    ) -> torch.Tensor:
        if indices.shape[0] == 0:
            return self.new_rows(indices)
        if not indices.is_cuda:
            return self._read_on_cpu(indices)
        fetch = self.service.step_fetch
        out = self.new_rows(indices)
        if fetch.has_started(self.layer, indices):
            fetch.join(self.layer, out)
        elif torch.cuda.is_current_stream_capturing():
            from sgl_ext.engram.breakable_read import read_between_segments

            read_between_segments(self, indices, out)
        else:
            self.read_while_waiting(indices, out)
        return out

    def _read_on_cpu(self, indices: torch.Tensor) -> torch.Tensor:
        service = self.service
        early = service.early_start.take_read(self.layer, indices)
        read = early or HostRead(service, self.layer, indices, pinned=False)
        payload = read.wait()
        layout = service.layout(indices.numel() // service.num_columns)
        rows, statuses = dequantise(
            service.gather(payload), layout, tp=service.tp, num_columns=service.num_columns
        )
        for rank, status in enumerate(statuses):
            if status != 0:
                service.raise_failed(status, self.layer, rank)
        return rows.view(*indices.shape, self.dim)

    def read_while_waiting(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """GPU, eager only: ids to the host, rows back. For what neither staging nor a step fetch covers."""
        payload = HostRead(self.service, self.layer, indices.cpu(), pinned=True).wait()
        layout = self.service.layout(indices.numel() // self.service.num_columns)
        self._dequantise(payload.to(indices.device, non_blocking=True), layout, out)

    def dequant_staged(
        self, rows: torch.Tensor, scales: PayloadLayout, copied: torch.cuda.Event, hash_shape: torch.Size
    ) -> torch.Tensor:
        """The rows that sgl_ext.engram.prompt_stager staged: (payload, its layout, event of its copy).

        Rows past the staged ones (prefill graph padding) are zero.
        """
        stream = torch.cuda.current_stream()
        stream.wait_event(copied)
        rows.record_stream(stream)
        out = torch.empty(*hash_shape, self.dim, dtype=torch.bfloat16, device=rows.device)
        self._dequantise(rows, scales, out)
        return out

    def _dequantise(self, payload: torch.Tensor, layout: PayloadLayout, out: torch.Tensor) -> None:
        from sgl_ext.engram.gpu_kernels import dequantise_gathered

        service = self.service
        dequantise_gathered(
            service.gather(payload),
            out,
            layout,
            tp=service.tp,
            num_columns=service.num_columns,
            error_address=service.step_fetch.error_address(self.layer),
        )

"""What all Engram layers of one rank share: the tables' identity, the open store, the ranks' exchange."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engram.checkpoint import find_revision
from engram.row_store import RowStore
from sgl_ext.engram.early_start import EarlyStart
from sgl_ext.engram.open_rank_store import EngramTable, open_rank_store, table_path
from sgl_ext.engram.payload import PayloadLayout
from sgl_ext.engram.store_settings import RowStoreSettings, read_store_settings
from sgl_ext.errors import EngramReadError, SettingError
from sgl_ext.settings import ENGRAM_DIR_VARIABLE, read_settings


@dataclass(slots=True, kw_only=True)
class RowService:
    """One per process; layers register while the model is built, then the store opens."""

    directory: Path
    rank: int
    tp: int
    settings: RowStoreSettings
    group: Any  # SGLang's TP group
    tables: list[EngramTable] = field(default_factory=list)
    num_columns: int = 0
    # The GPU path, made by whoever first needs it (sgl_ext.engram.step_fetch); None on a CPU engine.
    step_fetch: Any = None
    stager: Any = None
    early_start: EarlyStart = field(init=False)
    metrics: Any = None
    _store: RowStore | None = None

    def __post_init__(self) -> None:
        self.early_start = EarlyStart(self)

    def add_table(self, table: EngramTable, num_columns: int) -> int:
        """Registers one layer and returns its place; refuses a missing file before weights are loaded."""
        if self._store is not None:
            raise AssertionError("Engram layers must all be built before the first rows are read")
        table_path(self.directory, table.layer_id, self.rank, self.tp)
        if num_columns % self.tp != 0:
            raise SettingError(
                f"The Engram columns must divide by the ranks, got {num_columns} columns on {self.tp} ranks.",
                hint="use 1, 2, 3 or 4 nodes",
            )
        self.tables.append(table)
        self.num_columns = num_columns
        return len(self.tables) - 1

    @property
    def columns_per_rank(self) -> int:
        return self.num_columns // self.tp

    @property
    def store(self) -> RowStore:
        if self._store is None:
            self._store = open_rank_store(
                self.directory, self.tables, rank=self.rank, tp=self.tp, settings=self.settings
            )
        return self._store

    def require_revision(self, model: Path) -> None:
        """Raises SettingError where the packed rows are of another revision than the checkpoint:
        tables of one shape and another content would give other text without any error.
        """
        wanted = find_revision(model) if model.is_dir() else None
        seen = self.store.headers[0].source_revision
        if wanted is not None and seen != wanted:
            raise SettingError(
                f"The packed Engram tables must be of revision {wanted}, as the model in {model}, "
                f"got {seen} ({self.directory}).",
                hint=f"sparkctl engram pack --restart --tp {self.tp} --checkpoint {model} "
                f"--out {self.directory}",
            )

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def layout(self, num_tokens: int) -> PayloadLayout:
        return PayloadLayout(num_ids=num_tokens * self.columns_per_rank, dim=self.tables[0].dim)

    def gather(self, payload: torch.Tensor) -> torch.Tensor:
        """All ranks' payloads after one another: FP8, a quarter of what a bf16 all-reduce moves."""
        if self.tp == 1:
            return payload
        gathered = payload.new_empty(self.tp * payload.numel())
        self.group.all_gather_into_tensor(gathered, payload)
        return gathered

    def raise_failed(self, status: int, layer: int, rank: int | None = None) -> None:
        who = f"rank {rank}" if rank is not None else "a rank"
        raise EngramReadError(
            f"Engram rows of layer {self.tables[layer].layer_id} must be read, "
            f"got error {-status} ({os.strerror(-status)}) on {who}; the step is ended without output "
            f"({self.directory}).",
            hint="look at dmesg on that node, then: sparkctl engram verify --full",
        )


_service: RowService | None = None


def get_row_service() -> RowService:
    """This process's service; the first call reads the environment and SGLang's parallel state."""
    global _service
    if _service is None:
        _service = _make_service()
    return _service


def reset_row_service() -> None:
    """For tests: closes the store and forgets the service."""
    global _service
    if _service is not None and _service.is_open:
        _service.store.close()
    _service = None


def _make_service() -> RowService:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    for name in ("attn_dp_size", "attn_cp_size"):
        size = getattr(parallel, name)
        if size != 1:
            raise SettingError(
                f"{name} must be 1 with Engram rows from disk, got {size} (server arguments).",
                hint=f"leave the option out, or unset {ENGRAM_DIR_VARIABLE} to keep the tables in memory",
            )
    directory = read_settings(os.environ).engram_dir
    if directory is None:
        raise SettingError(f"{ENGRAM_DIR_VARIABLE} must be set, got nothing (environment).")
    return RowService(
        directory=directory,
        rank=parallel.tp_rank,
        tp=parallel.tp_size,
        settings=read_store_settings(os.environ),
        group=parallel.tp_group if parallel.tp_size > 1 else None,
    )

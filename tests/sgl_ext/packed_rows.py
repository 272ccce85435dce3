"""Engram tables of a small model, packed, and the variables of an engine that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engram.checkpoint import open_checkpoint
from engram.pack_table import NoProgress, PackRequest, pack_tables


def pack_rows(model: Path, folder: Path, tps: Sequence[int]) -> None:
    """Every rank of each TP in one folder, as one node would never have it."""
    checkpoint = open_checkpoint(model)
    for tp in tps:
        request = PackRequest(
            checkpoint=checkpoint,
            directory=folder,
            source_repo="test/tiny",
            tp=tp,
            ranks=tuple(range(tp)),
            layer_ids=tuple(table.layer_id for table in checkpoint.tables),
            allow_buffered=True,
        )
        pack_tables(request, NoProgress())


def row_variables(folder: Path) -> dict[str, str]:
    """Nothing is kept in memory, so every row comes from the file."""
    return {
        "SPARKCTL_ENGRAM_DIR": str(folder),
        "SPARKCTL_ENGRAM_BUFFERED": "1",
        "SPARKCTL_ENGRAM_CACHE_GIB": "0",
        "SPARKCTL_ENGRAM_LOOKAHEAD_GIB": "0",
    }

"""Opens this rank's packed tables, checked against the model that is being built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engram.row_store import RowStore, open_row_store
from engram.self_test import Expected
from engram.table_format import table_file_name
from sgl_ext.engram.store_settings import RowStoreSettings
from sgl_ext.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramTable:
    """One Engram layer's table as the model's config has it."""

    layer_id: int
    num_rows: int
    dim: int


def table_path(directory: Path, layer_id: int, rank: int, tp: int) -> Path:
    """The packed file; raises SettingError where it is missing, before minutes of weight loading."""
    path = directory / table_file_name(layer_id, rank, tp)
    if path.is_file():
        return path
    found = sorted(entry.name for entry in directory.glob("*.engram"))
    raise SettingError(
        f"The packed Engram table of layer {layer_id} for rank {rank} of {tp} must exist, "
        f"got {', '.join(found) or 'no packed tables'} in its folder ({path}).",
        hint=f"sparkctl engram pack --tp {tp}, or set extensions.engram.packed_path to where its output is",
    )


def open_rank_store(
    directory: Path, tables: Sequence[EngramTable], *, rank: int, tp: int, settings: RowStoreSettings
) -> RowStore:
    """Raises the row store's own errors (engram.errors) where a file is damaged or is another table."""
    return open_row_store(
        [table_path(directory, table.layer_id, rank, tp) for table in tables],
        expect=Expected(
            rank=rank,
            tp=tp,
            layer_ids=tuple(table.layer_id for table in tables),
            total_rows=tuple(table.num_rows for table in tables),
        ),
        **settings.store_options(),  # type: ignore[arg-type]
    )

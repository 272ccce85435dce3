"""Checks at open: is this the table that the caller expects, and do its rows carry the packed bytes?

Random blocks are compared with the manifest's checksums, then random rows of these blocks are asked of the
store by their global ids and compared with the blocks: a wrong rank, offset or column order cannot pass.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engram.direct_file import naming_disk_errors
from engram.errors import TableFormatError, TableMismatchError
from engram.manifest import BLOCK_BYTES, ManifestFile, block_checksum, read_manifest
from engram.table_format import PAGE_BYTES, TableHeader

ReadRows = Callable[[int, NDArray[np.int64]], tuple[NDArray[np.uint8], NDArray[np.uint8]]]

ROWS_PER_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the caller was configured for; None means "any"."""

    rank: int | None = None
    tp: int | None = None
    source_revision: str | None = None
    layer_ids: tuple[int, ...] | None = None
    total_rows: tuple[int, ...] | None = None
    """Rows of each layer's whole table, in the order of layer_ids, or of the files without them."""


def check_expected(paths: tuple[Path, ...], headers: tuple[TableHeader, ...], expected: Expected) -> None:
    """Raises TableMismatchError. Files of one store must also agree with each other."""
    first = headers[0]
    for path, header in zip(paths, headers, strict=True):
        for name, wanted, seen in (
            ("rank", first.rank if expected.rank is None else expected.rank, header.rank),
            ("tp", first.tp if expected.tp is None else expected.tp, header.tp),
            ("source_revision", expected.source_revision or first.source_revision, header.source_revision),
        ):
            if seen != wanted:
                raise _mismatch(name, wanted, seen, str(path))
    layer_ids = tuple(header.layer_id for header in headers)
    where = ", ".join(str(path) for path in paths)
    if len(set(layer_ids)) != len(layer_ids):
        raise _mismatch("layers", "one file each", layer_ids, where)
    if expected.layer_ids is not None and layer_ids != expected.layer_ids:
        raise _mismatch("layers", expected.layer_ids, layer_ids, where)
    total_rows = tuple(header.total_rows for header in headers)
    if expected.total_rows is not None and total_rows != expected.total_rows:
        raise _mismatch("total_rows", expected.total_rows, total_rows, where)


def check_against_manifest(path: Path, header: TableHeader) -> ManifestFile:
    """The manifest's entry of this file. Raises when there is none or it describes another table."""
    manifest = read_manifest(path.parent)
    entry = manifest.find(header.file_name)
    if path.name != header.file_name:
        raise _mismatch("file name", header.file_name, path.name, str(path))
    if entry is None:
        raise _mismatch("manifest.json", f"a list with {header.file_name}", "none", str(path))
    for name, wanted, seen in (
        ("source_revision", manifest.source_revision, header.source_revision),
        ("table_id", entry.table_id, header.table_id.hex()),
        ("file_bytes", entry.file_bytes, header.file_bytes),
    ):
        if seen != wanted:
            raise _mismatch(f"{name} of the manifest", wanted, seen, str(path))
    return entry


def check_rows(
    path: Path,
    header: TableHeader,
    entry: ManifestFile,
    read_rows: ReadRows,
    num_blocks: int,
    rng: random.Random,
) -> None:
    """Raises TableFormatError when a sampled block or a sampled row is not what was packed."""
    blocks = rng.sample(range(entry.num_blocks), min(num_blocks, entry.num_blocks))
    for block_idx in sorted(blocks):
        block = _read_block(path, entry, block_idx)
        if block_checksum(block) != entry.checksum(block_idx):
            offset, _ = entry.block_range(block_idx)
            raise _damaged(f"the block at byte {offset}", "its checksum in the manifest", path)
        _compare_rows(path, header, block_idx, block, read_rows, rng)


def _read_block(path: Path, entry: ManifestFile, block_idx: int) -> bytes:
    offset, num_bytes = entry.block_range(block_idx)
    with naming_disk_errors(f"read {num_bytes} bytes at byte {offset}", path), path.open("rb") as file:
        file.seek(offset)
        block = file.read(num_bytes)
    if len(block) != num_bytes:
        raise _damaged(f"the block at byte {offset}", f"{num_bytes} bytes (got {len(block)})", path)
    return block


def _compare_rows(
    path: Path, header: TableHeader, block_idx: int, block: bytes, read_rows: ReadRows, rng: random.Random
) -> None:
    first_page = block_idx * (BLOCK_BYTES // PAGE_BYTES)
    first = first_page * header.rows_per_page
    end = min(first + len(block) // PAGE_BYTES * header.rows_per_page, header.num_rows)
    local = sorted(rng.sample(range(first, end), min(ROWS_PER_BLOCK, end - first)))
    ids = np.array([global_row_id(header, row) for row in local], dtype=np.int64)
    weight, scale = read_rows(header.layer_id, ids)
    for idx, row in enumerate(local):
        page, in_page = divmod(row, header.rows_per_page)
        start = (page - first_page) * PAGE_BYTES + in_page * header.row_bytes
        if weight[idx].tobytes() + scale[idx].tobytes() != block[start : start + header.row_bytes]:
            raise _damaged(f"row {ids[idx]}", "the packed bytes", path)


def global_row_id(header: TableHeader, local_row: int) -> int:
    for column in header.columns:
        if local_row < column.num_rows:
            return column.first_row + local_row
        local_row -= column.num_rows
    raise ValueError(f"local_row must be below {header.num_rows}")


def _mismatch(name: str, wanted: object, seen: object, where: str) -> TableMismatchError:
    return TableMismatchError(
        f"{name} must be {wanted}, got {seen} ({where}).",
        hint="give this rank its own file, or pack for this rank, TP and revision: sparkctl engram pack",
    )


def _damaged(what: str, wanted: str, path: Path) -> TableFormatError:
    return TableFormatError(
        f"{what} must match {wanted}, got other bytes ({path}).",
        hint="find the damage: sparkctl engram verify --full; pack it again: sparkctl engram pack --restart",
    )

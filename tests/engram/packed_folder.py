"""Packed files and a manifest straight from numpy arrays: what the row store is checked against."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engram.manifest import BLOCK_BYTES, MANIFEST_NAME, ManifestFile, block_checksum, new_manifest
from engram.table_format import HEADER_BYTES, PAGE_BYTES, TableHeader, deal_columns, pack_header

REVISION = "c" * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFolder:
    directory: Path
    files: tuple[Path, ...]  # of one rank, one a layer
    tables: dict[int, NDArray[np.uint8]]  # layer -> [total rows, row bytes]
    headers: dict[int, TableHeader]

    def owned_ids(self, layer_id: int) -> NDArray[np.int64]:
        columns = self.headers[layer_id].columns
        return np.concatenate([np.arange(c.first_row, c.first_row + c.num_rows) for c in columns])


def write_packed_folder(
    directory: Path,
    *,
    column_sizes: tuple[int, ...] = (700, 701, 703, 709, 719, 727),
    layer_ids: tuple[int, ...] = (1, 14),
    rank: int = 0,
    tp: int = 1,
    weight_bytes: int = 256,
    scale_bytes: int = 8,
    revision: str = REVISION,
    seed: int = 0,
) -> PackedFolder:
    directory.mkdir(parents=True, exist_ok=True)
    bounds = (0, *accumulate(column_sizes))
    manifest = new_manifest(source_repo="test/table", source_revision=revision)
    files, tables, headers = [], {}, {}
    for layer_id in layer_ids:
        rng = np.random.default_rng([seed, layer_id])
        table = rng.integers(0, 256, (bounds[-1], weight_bytes + scale_bytes), dtype=np.uint8)
        header = TableHeader(
            layer_id=layer_id,
            rank=rank,
            tp=tp,
            weight_bytes=weight_bytes,
            scale_bytes=scale_bytes,
            total_rows=bounds[-1],
            source_revision=revision,
            columns=deal_columns(bounds, rank, tp),
        )
        pages = paginate(table, header)
        path = directory / header.file_name
        path.write_bytes(pack_header(header) + pages)
        manifest = manifest.with_file(describe(header, pages))
        files.append(path)
        tables[layer_id] = table
        headers[layer_id] = header
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json())
    return PackedFolder(directory=directory, files=tuple(files), tables=tables, headers=headers)


def paginate(table: NDArray[np.uint8], header: TableHeader) -> bytes:
    rows = np.concatenate([table[c.first_row : c.first_row + c.num_rows] for c in header.columns])
    pages = np.zeros((header.num_pages, PAGE_BYTES), dtype=np.uint8)
    padded = np.zeros((header.num_pages * header.rows_per_page, header.row_bytes), dtype=np.uint8)
    padded[: len(rows)] = rows
    used = header.rows_per_page * header.row_bytes
    pages[:, :used] = padded.reshape(header.num_pages, used)
    return pages.tobytes()


def describe(header: TableHeader, pages: bytes) -> ManifestFile:
    blocks = [pages[start : start + BLOCK_BYTES] for start in range(0, len(pages), BLOCK_BYTES)]
    return ManifestFile(
        layer_id=header.layer_id,
        rank=header.rank,
        tp=header.tp,
        table_id=header.table_id.hex(),
        file_bytes=HEADER_BYTES + len(pages),
        block_checksums=b"".join(block_checksum(block) for block in blocks),
    )

"""A packed table of random rows, large enough that no page cache can hold it; valid header and manifest."""

import hashlib
import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np

from engram.direct_file import DirectFile, naming_disk_errors
from engram.errors import DiskError
from engram.hash_layout import HashLayout
from engram.manifest import BLOCK_BYTES, MANIFEST_NAME, ManifestFile, block_checksum, new_manifest
from engram.primes import draw_column_primes
from engram.table_format import HEADER_BYTES, PAGE_BYTES, TableHeader, deal_columns, pack_header
from engram.write_file import write_atomically

LAYER_ID = 1
# 24 columns of the smallest primes from here on: 20.4 million rows, 5.6 GB.
COLUMN_ROWS = 850_000
NUM_CLASSES_PLACEHOLDER = 1


def make_layout(column_rows: int, num_classes: int) -> HashLayout:
    """V4.1's hash with the table's own prime sizes and the trace tokenizer's number of classes."""
    return HashLayout(
        layer_ids=(LAYER_ID,),
        window_tokens=4,
        num_heads=8,
        num_classes=num_classes,
        primes=draw_column_primes(num_layers=1, num_orders=3, num_heads=8, vocab_size=column_rows),
        head_dim=256,
    )


def make_header(column_rows: int) -> TableHeader:
    primes = make_layout(column_rows, NUM_CLASSES_PLACEHOLDER).primes[0]
    bounds = (0, *accumulate(primes))
    return TableHeader(
        layer_id=LAYER_ID,
        rank=0,
        tp=1,
        weight_bytes=256,
        scale_bytes=8,
        total_rows=bounds[-1],
        source_revision="synthetic-bench-table",
        columns=deal_columns(bounds, 0, 1),
    )


def ensure_table(directory: Path, column_rows: int = COLUMN_ROWS) -> Path:
    """The table's path; writes it first when it is not there. Seeded: the same bytes on every machine."""
    header = make_header(column_rows)
    path = directory / header.file_name
    if path.is_file() and path.stat().st_size == header.file_bytes and (directory / MANIFEST_NAME).is_file():
        return path
    with naming_disk_errors("create the folder", directory):
        directory.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    checksums = _write_table(partial, header)
    with naming_disk_errors("rename", partial):
        partial.replace(path)
    entry = ManifestFile(
        layer_id=header.layer_id,
        rank=0,
        tp=1,
        table_id=header.table_id.hex(),
        file_bytes=header.file_bytes,
        block_checksums=checksums,
    )
    manifest = new_manifest(source_repo="synthetic", source_revision=header.source_revision).with_file(entry)
    write_atomically(directory / MANIFEST_NAME, manifest.model_dump_json().encode())
    return path


def _write_table(partial: Path, header: TableHeader) -> bytes:
    """Header and rows; returns the checksums of the blocks. Leaves nothing behind when it fails."""
    checksums = []
    try:
        with naming_disk_errors("write", partial), partial.open("wb") as file:
            # A memory file system or a full disk is no disk to measure: found out before 5.6 GB are written.
            _expect_direct_io(partial)
            os.posix_fallocate(file.fileno(), 0, header.file_bytes)
            file.write(pack_header(header))
            for block in _random_blocks(header):
                checksums.append(block_checksum(block))
                file.write(block)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return b"".join(checksums)


def _expect_direct_io(path: Path) -> None:
    try:
        DirectFile(path, os.O_RDONLY).close()
    except DiskError as error:
        raise DiskError(error.message, hint="pass --directory on the disk to measure, ext4 or xfs") from error


def _random_blocks(header: TableHeader) -> Iterator[bytes]:
    seed = hashlib.sha256(header.table_id).digest()
    rng = np.random.Generator(np.random.SFC64(int.from_bytes(seed[:8], "little")))
    used = header.rows_per_page * header.row_bytes
    left = header.file_bytes - HEADER_BYTES
    while left > 0:
        num_bytes = min(BLOCK_BYTES, left)
        pages = rng.integers(0, 256, (num_bytes // PAGE_BYTES, PAGE_BYTES), dtype=np.uint8)
        pages[:, used:] = 0
        yield pages.tobytes()
        left -= num_bytes

"""The packed Engram file: header, column table and row layout (engram/core/table_format.hpp is its twin).

Little-endian, one file per layer and rank:

    0      fixed header fields (`_FIXED`), zeros up to byte 256
    256    column table, one 24-byte entry per owned hash column, zeros after it
    4064   sha256 of bytes 0..4063
    4096   pages of `page_bytes`, each with `rows_per_page` rows; a row never straddles a page

Owned columns follow each other in order of column_idx and share one run of local row ids; a local row r lies
in page r // rows_per_page at byte (r % rows_per_page) * row_bytes, weight bytes first, then scale bytes.
"""

import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Final

from engram.errors import TableFormatError

MAGIC: Final = b"SPKENGRM"
LAYOUT_VERSION: Final = 1
HEADER_BYTES: Final = 4096
PAGE_BYTES: Final = 4096
COLUMN_TABLE_OFFSET_BYTES: Final = 256
MAX_COLUMNS: Final = 128
MAX_TP: Final = 128
CHECKSUM_OFFSET_BYTES: Final = HEADER_BYTES - 32
# Row ids are int64 in every consumer, and a file's byte offsets must fit off_t with room to spare.
MAX_ROWS: Final = 1 << 48

# magic | layout_version, header_bytes, layer_id, rank, tp, num_columns, weight_bytes, scale_bytes,
# rows_per_page, page_bytes | num_rows, total_rows, file_bytes | source_revision | table_id
_FIXED: Final = struct.Struct("<8s10I3Q64s32s")
_IDENTITY_BYTES: Final = _FIXED.size - 32
_COLUMN: Final = struct.Struct("<IIQQ")

_FILE_NAME: Final = re.compile(r"layer-(\d{2,})\.rank-(\d+)of(\d+)\.engram")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """One owned hash column: rows [first_row, first_row + num_rows) of the layer's whole table."""

    column_idx: int
    first_row: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHeader:
    """What one packed file holds; every derived figure follows from these fields."""

    layer_id: int
    rank: int
    tp: int
    weight_bytes: int
    scale_bytes: int
    total_rows: int
    source_revision: str
    columns: tuple[ColumnRange, ...]

    @property
    def row_bytes(self) -> int:
        return self.weight_bytes + self.scale_bytes

    @property
    def rows_per_page(self) -> int:
        return PAGE_BYTES // self.row_bytes

    @property
    def num_rows(self) -> int:
        """Rows in this file."""
        return sum(column.num_rows for column in self.columns)

    @property
    def num_pages(self) -> int:
        return -(-self.num_rows // self.rows_per_page)

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + self.num_pages * PAGE_BYTES

    @property
    def file_name(self) -> str:
        return table_file_name(self.layer_id, self.rank, self.tp)

    @property
    def table_id(self) -> bytes:
        """sha256 over the identity fields: the fixed fields before it and the column table."""
        return hashlib.sha256(_pack_fixed(self, b"")[:_IDENTITY_BYTES] + _pack_columns(self)).digest()


def table_file_name(layer_id: int, rank: int, tp: int) -> str:
    return f"layer-{layer_id:02d}.rank-{rank}of{tp}.engram"


def parse_table_file_name(name: str) -> tuple[int, int, int] | None:
    """(layer_id, rank, tp), or None when the name is no packed table's."""
    match = _FILE_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def deal_columns(column_bounds: tuple[int, ...], rank: int, tp: int) -> tuple[ColumnRange, ...]:
    """The columns of `rank` out of `tp`, dealt round-robin: column c belongs to rank c % tp.

    `column_bounds` are the prefix sums of the layer's column sizes, starting at 0. Round-robin mixes the
    n-gram orders: longer n-grams repeat less, so contiguous blocks would give ranks unequal read counts.
    """
    return tuple(
        ColumnRange(
            column_idx=idx,
            first_row=column_bounds[idx],
            num_rows=column_bounds[idx + 1] - column_bounds[idx],
        )
        for idx in range(rank, len(column_bounds) - 1, tp)
    )


def pack_header(header: TableHeader) -> bytes:
    """The 4096 header bytes. Raises TableFormatError for a header that parse_header would refuse."""
    _check(header, header.file_name)
    raw = bytearray(HEADER_BYTES)
    raw[: _FIXED.size] = _pack_fixed(header, header.table_id)
    columns = _pack_columns(header)
    raw[COLUMN_TABLE_OFFSET_BYTES : COLUMN_TABLE_OFFSET_BYTES + len(columns)] = columns
    raw[CHECKSUM_OFFSET_BYTES:] = hashlib.sha256(raw[:CHECKSUM_OFFSET_BYTES]).digest()
    return bytes(raw)


def parse_header(raw: bytes, where: str) -> TableHeader:
    """The header in the first 4096 bytes of a packed file; `where` names the file in errors."""
    if len(raw) < HEADER_BYTES:
        raise _wrong("packed table", f"at least {HEADER_BYTES} bytes long", f"{len(raw)} bytes", where)
    raw = bytes(raw[:HEADER_BYTES])
    if raw[:8] != MAGIC:
        raise _wrong("magic", repr(MAGIC), repr(raw[:8]), where)
    magic_and_rest = _FIXED.unpack_from(raw)
    (version, header_bytes, layer_id, rank, tp, num_columns) = magic_and_rest[1:7]
    (weight_bytes, scale_bytes, rows_per_page, page_bytes) = magic_and_rest[7:11]
    (num_rows, total_rows, file_bytes, revision, table_id) = magic_and_rest[11:]
    # The version comes before the checksum: a later layout may keep its checksum elsewhere.
    _expect("layout_version", LAYOUT_VERSION, version, where)
    if hashlib.sha256(raw[:CHECKSUM_OFFSET_BYTES]).digest() != raw[CHECKSUM_OFFSET_BYTES:]:
        raise _wrong("header checksum", "the sha256 of the header", "another value", where)
    _expect("header_bytes", HEADER_BYTES, header_bytes, where)
    _expect("page_bytes", PAGE_BYTES, page_bytes, where)
    if not 1 <= num_columns <= MAX_COLUMNS:
        raise _wrong("num_columns", f"1 to {MAX_COLUMNS}", str(num_columns), where)
    end = COLUMN_TABLE_OFFSET_BYTES + num_columns * _COLUMN.size
    if any(raw[_FIXED.size : COLUMN_TABLE_OFFSET_BYTES]) or any(raw[end:CHECKSUM_OFFSET_BYTES]):
        raise _wrong("reserved header bytes", "zero", "other values", where)
    header = TableHeader(
        layer_id=layer_id,
        rank=rank,
        tp=tp,
        weight_bytes=weight_bytes,
        scale_bytes=scale_bytes,
        total_rows=total_rows,
        source_revision=_parse_revision(revision, where),
        columns=_parse_columns(raw, num_columns, where),
    )
    _check(header, where)
    _expect("rows_per_page", header.rows_per_page, rows_per_page, where)
    _expect("num_rows", header.num_rows, num_rows, where)
    _expect("file_bytes", header.file_bytes, file_bytes, where)
    if header.table_id != table_id:
        raise _wrong("table_id", header.table_id.hex(), table_id.hex(), where)
    return header


def _pack_fixed(header: TableHeader, table_id: bytes) -> bytes:
    return _FIXED.pack(
        MAGIC,
        LAYOUT_VERSION,
        HEADER_BYTES,
        header.layer_id,
        header.rank,
        header.tp,
        len(header.columns),
        header.weight_bytes,
        header.scale_bytes,
        header.rows_per_page,
        PAGE_BYTES,
        header.num_rows,
        header.total_rows,
        header.file_bytes,
        header.source_revision.encode("ascii"),
        table_id,
    )


def _pack_columns(header: TableHeader) -> bytes:
    return b"".join(_COLUMN.pack(c.column_idx, 0, c.first_row, c.num_rows) for c in header.columns)


def _parse_columns(raw: bytes, num_columns: int, where: str) -> tuple[ColumnRange, ...]:
    columns = []
    for idx in range(num_columns):
        column_idx, reserved, first_row, num_rows = _COLUMN.unpack_from(
            raw, COLUMN_TABLE_OFFSET_BYTES + idx * _COLUMN.size
        )
        _expect(f"reserved field of column entry {idx}", 0, reserved, where)
        columns.append(ColumnRange(column_idx=column_idx, first_row=first_row, num_rows=num_rows))
    return tuple(columns)


def _parse_revision(raw: bytes, where: str) -> str:
    text = raw.rstrip(b"\0")
    if not re.fullmatch(rb"[0-9A-Za-z._-]+", text):
        raise _wrong("source_revision", "ASCII letters, digits, '.', '_' or '-'", repr(text), where)
    return text.decode("ascii")


def _check(header: TableHeader, where: str) -> None:
    if not 1 <= header.tp <= MAX_TP or not 0 <= header.rank < header.tp:
        raise _wrong("rank", f"below tp, and tp 1 to {MAX_TP}", f"rank {header.rank} of {header.tp}", where)
    if not 0 <= header.layer_id < 1 << 16:
        raise _wrong("layer_id", "0 to 65535", str(header.layer_id), where)
    if header.weight_bytes < 1 or header.scale_bytes < 0 or header.row_bytes > PAGE_BYTES:
        seen = f"{header.weight_bytes} + {header.scale_bytes}"
        raise _wrong("weight_bytes + scale_bytes", f"1 to {PAGE_BYTES}", seen, where)
    if not re.fullmatch(r"[0-9A-Za-z._-]{1,64}", header.source_revision):
        expected = "1 to 64 ASCII letters, digits, '.', '_' or '-'"
        raise _wrong("source_revision", expected, repr(header.source_revision), where)
    if not 1 <= header.total_rows <= MAX_ROWS:
        raise _wrong("total_rows", f"1 to {MAX_ROWS}", str(header.total_rows), where)
    if not 1 <= len(header.columns) <= MAX_COLUMNS:
        raise _wrong("num_columns", f"1 to {MAX_COLUMNS}", str(len(header.columns)), where)
    _check_columns(header, where)


def _check_columns(header: TableHeader, where: str) -> None:
    next_idx, next_row = header.rank, 0
    for column in header.columns:
        name = f"column {column.column_idx}"
        if column.column_idx != next_idx:
            raise _wrong(
                f"column_idx dealt to rank {header.rank}", str(next_idx), str(column.column_idx), where
            )
        # Sizes are checked before sums, so that a hostile header cannot overflow the C++ twin.
        if not 1 <= column.num_rows <= MAX_ROWS or not next_row <= column.first_row <= MAX_ROWS:
            seen = f"first_row {column.first_row}, num_rows {column.num_rows}"
            raise _wrong(name, "rows after the column before it", seen, where)
        next_row = column.first_row + column.num_rows
        if next_row > header.total_rows:
            raise _wrong(name, f"inside the table's {header.total_rows} rows", f"an end at {next_row}", where)
        next_idx += header.tp


def _expect(name: str, expected: int, seen: int, where: str) -> None:
    if seen != expected:
        raise _wrong(name, str(expected), str(seen), where)


def _wrong(name: str, expected: str, seen: str, where: str) -> TableFormatError:
    return TableFormatError(
        f"{name} must be {expected}, got {seen} ({where}).",
        hint="the file is damaged or of another version; pack again: sparkctl engram pack --restart",
    )

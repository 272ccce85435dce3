"""The packed file's header: round trips, layout figures, and refusal of everything else."""

import hashlib
import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import TableFormatError
from engram.table_format import (
    CHECKSUM_OFFSET_BYTES,
    HEADER_BYTES,
    MAX_COLUMNS,
    ColumnRange,
    TableHeader,
    deal_columns,
    pack_header,
    parse_header,
    parse_table_file_name,
    table_file_name,
)


@st.composite
def headers(draw: st.DrawFn) -> TableHeader:
    tp = draw(st.integers(1, 8))
    num_columns = draw(st.integers(tp, 60))
    sizes = draw(st.lists(st.integers(1, 2**30), min_size=num_columns, max_size=num_columns))
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    rank = draw(st.integers(0, tp - 1))
    weight_bytes = draw(st.integers(1, 4000))
    return TableHeader(
        layer_id=draw(st.integers(0, 65535)),
        rank=rank,
        tp=tp,
        weight_bytes=weight_bytes,
        scale_bytes=draw(st.integers(0, 4096 - weight_bytes)),
        total_rows=bounds[-1],
        source_revision=draw(st.from_regex(r"[0-9a-f]{1,64}", fullmatch=True)),
        columns=deal_columns(tuple(bounds), rank, tp),
    )


HEADER = TableHeader(
    layer_id=14,
    rank=1,
    tp=3,
    weight_bytes=256,
    scale_bytes=8,
    total_rows=600,
    source_revision="dba1be0a40aa45a94ad051997016db3960a90277",
    columns=deal_columns((0, 101, 204, 311, 420, 533, 600), 1, 3),
)


def reseal(raw: bytes | bytearray) -> bytes:
    """The same bytes under a fresh checksum, so that the check behind it is reached."""
    body = bytes(raw[:CHECKSUM_OFFSET_BYTES])
    return body + hashlib.sha256(body).digest()


@given(headers())
def test_round_trip(header: TableHeader) -> None:
    raw = pack_header(header)
    assert len(raw) == HEADER_BYTES
    assert parse_header(raw, "test") == header
    assert parse_header(raw + b"page", "test").table_id == header.table_id


def test_fields_lie_where_the_format_says() -> None:
    raw = pack_header(HEADER)
    fixed = struct.unpack_from("<8s10I3Q64s32s", raw)
    assert fixed[:11] == (b"SPKENGRM", 1, 4096, 14, 1, 3, 2, 256, 8, 15, 4096)
    assert fixed[11:14] == (103 + 113, 600, 4096 + 4096 * 15)
    assert fixed[14].rstrip(b"\0") == HEADER.source_revision.encode()
    assert struct.unpack_from("<IIQQIIQQ", raw, 256) == (1, 0, 101, 103, 4, 0, 420, 113)
    assert raw[4064:] == hashlib.sha256(raw[:4064]).digest()


def test_released_layout_figures() -> None:
    whole = replace(HEADER, rank=0, tp=1, total_rows=384_006_168, columns=(
        ColumnRange(column_idx=0, first_row=0, num_rows=384_006_168),
    ))  # fmt: skip
    assert (whole.row_bytes, whole.rows_per_page) == (264, 15)
    assert whole.file_bytes == 4096 + 25_600_412 * 4096


def test_columns_are_dealt_round_robin_and_cover_all() -> None:
    bounds = tuple(range(0, 250, 10))
    dealt = [deal_columns(bounds, rank, 3) for rank in range(3)]
    assert [column.column_idx for column in dealt[1]] == [1, 4, 7, 10, 13, 16, 19, 22]
    rows = sorted((c.first_row, c.first_row + c.num_rows) for columns in dealt for c in columns)
    assert rows == list(pairwise(bounds))


@given(st.integers(0, 4095), st.integers(1, 255))
def test_a_flipped_byte_is_refused(at: int, mask: int) -> None:
    raw = bytearray(pack_header(HEADER))
    raw[at] ^= mask
    with pytest.raises(TableFormatError, match=r"must be .*, got .* \(test\)\."):
        parse_header(bytes(raw), "test")


@given(st.integers(0, CHECKSUM_OFFSET_BYTES - 1), st.integers(1, 255))
def test_a_flipped_byte_under_a_fresh_checksum_is_refused(at: int, mask: int) -> None:
    """table_id covers the identity, so that no single field can lie even where the checksum was made anew."""
    raw = bytearray(pack_header(HEADER))
    raw[at] ^= mask
    with pytest.raises(TableFormatError, match=r"must be .*, got .* \(test\)\."):
        parse_header(reseal(raw), "test")


@given(st.binary(max_size=5000))
def test_any_bytes_give_one_clear_error(raw: bytes) -> None:
    with pytest.raises(TableFormatError):
        parse_header(raw, "test")


@given(
    st.tuples(*[st.integers(0, 2**32 - 1)] * 7),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 3),
    st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 2, *[st.integers(0, 2**64 - 1)] * 2), max_size=5),
    st.binary(max_size=64),
)
def test_any_fields_give_one_clear_error(ints, longs, columns, revision) -> None:
    """Sound magic, version and checksum around hostile fields."""
    layer_id, rank, tp, num_columns, weight_bytes, scale_bytes, rows_per_page = ints
    raw = bytearray(HEADER_BYTES)
    struct.pack_into(
        "<8s10I3Q64s", raw, 0, b"SPKENGRM", 1, 4096, layer_id, rank, tp % 200, num_columns % 140,
        weight_bytes % 5000, scale_bytes % 5000, rows_per_page % 50, 4096, *longs, revision,
    )  # fmt: skip
    for idx, column in enumerate(columns):
        struct.pack_into("<IIQQ", raw, 256 + 24 * idx, *column)
    with pytest.raises(TableFormatError, match="must be"):
        parse_header(reseal(raw), "test")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 3}, "rank must be below tp"),
        ({"tp": 0}, "rank must be below tp"),
        ({"weight_bytes": 4090}, "weight_bytes . scale_bytes must be 1 to 4096"),
        ({"source_revision": ""}, "source_revision must be"),
        ({"source_revision": "x" * 65}, "source_revision must be"),
        ({"source_revision": "a b"}, "source_revision must be"),
        ({"total_rows": 500}, "column 4 must be inside the table's 500 rows"),
        ({"columns": ()}, f"num_columns must be 1 to {MAX_COLUMNS}, got 0"),
        ({"columns": HEADER.columns[::-1]}, "column_idx dealt to rank 1 must be 1, got 4"),
        ({"layer_id": -1}, "layer_id must be"),
    ],
)
def test_a_wrong_header_is_never_written(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TableFormatError, match=message):
        pack_header(replace(HEADER, **changes))


def test_overlapping_columns_are_refused() -> None:
    first, second = HEADER.columns
    overlap = replace(HEADER, columns=(first, replace(second, first_row=first.first_row + 1)))
    with pytest.raises(TableFormatError, match="column 4 must be rows after the column before it"):
        pack_header(overlap)


@given(st.integers(0, 65535), st.integers(0, 127), st.integers(1, 128))
def test_file_names_round_trip(layer_id: int, rank: int, tp: int) -> None:
    assert parse_table_file_name(table_file_name(layer_id, rank, tp)) == (layer_id, rank, tp)


@pytest.mark.parametrize("name", ["layer-1.rank-0of1.engram", "layer-01.rank-0of1.engram.partial", ""])
def test_other_names_are_no_tables(name: str) -> None:
    assert parse_table_file_name(name) is None

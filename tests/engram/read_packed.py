"""Reads packed files with nothing but numpy and the text of the format: what packing is checked against."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_packed_rows(path: Path) -> dict[int, NDArray[np.uint8]]:
    """Global row id of each column's start -> the column's rows [rows, row bytes]; checks the zero tails."""
    raw = np.fromfile(path, dtype=np.uint8)
    fixed = struct.unpack_from("<8s10I3Q64s32s", raw.tobytes()[:256])
    num_columns, weight_bytes, scale_bytes, rows_per_page, page_bytes, num_rows = fixed[6:12]
    row_bytes = weight_bytes + scale_bytes
    pages = raw[4096:].reshape(-1, page_bytes)
    flat = pages[:, : rows_per_page * row_bytes].reshape(-1, row_bytes)
    assert not pages[:, rows_per_page * row_bytes :].any()
    assert not flat[num_rows:].any()
    columns, start = {}, 0
    table = raw[256 : 256 + 24 * num_columns].tobytes()
    for idx in range(num_columns):
        _, _, first_row, column_rows = struct.unpack_from("<IIQQ", table, 24 * idx)
        columns[first_row] = flat[start : start + column_rows]
        start += column_rows
    assert start == num_rows
    return columns

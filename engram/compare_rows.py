"""Pages of a packed file against the checkpoint's planes, row by row."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engram.checkpoint import TablePlanes
from engram.direct_file import ALIGNMENT_BYTES, AlignedBuffer, DirectFile
from engram.errors import TableMismatchError
from engram.pack_plan import Segment, find_segments
from engram.table_format import PAGE_BYTES, TableHeader

Bytes = NDArray[np.uint8]


class RowComparer:
    """Open planes of one layer. Threads may share it. Takes the pages apart with numpy, not with the packer's
    own loop, so that a fault of that loop shows.
    """

    def __init__(self, header: TableHeader, planes: TablePlanes, *, allow_buffered: bool) -> None:
        self._header = header
        self._planes = (planes.weight, planes.scale)
        self._files = [
            DirectFile(plane.path, os.O_RDONLY, allow_buffered=allow_buffered) for plane in self._planes
        ]
        self._local = threading.local()

    def compare(self, path: Path, pages: memoryview, first_page: int) -> int:
        """Compares whole pages of the file at `path`; returns how many rows. Raises TableMismatchError."""
        header = self._header
        table = np.frombuffer(pages, dtype=np.uint8).reshape(-1, PAGE_BYTES)
        used_bytes = header.rows_per_page * header.row_bytes
        rows = table[:, :used_bytes].reshape(-1, header.row_bytes)
        start = first_page * header.rows_per_page
        end = min(start + len(rows), header.num_rows)
        if table[:, used_bytes:].any() or rows[end - start :].any():
            raise TableMismatchError(
                f"unused bytes of a page must be zero, got others from page {first_page} on ({path}).",
                hint="pack this file again: sparkctl engram pack --restart",
            )
        for segment in find_segments(header, start, end):
            self._compare_segment(path, segment, rows, start)
        return end - start

    def _compare_segment(self, path: Path, segment: Segment, rows: Bytes, start: int) -> None:
        part = rows[segment.row_in_chunk : segment.row_in_chunk + segment.num_rows]
        split = self._header.weight_bytes
        for idx, (name, seen) in enumerate((("weight", part[:, :split]), ("scale", part[:, split:]))):
            wanted = self._read(idx, segment)
            if np.array_equal(seen, wanted):
                continue
            bad = int(np.flatnonzero((seen != wanted).any(axis=1))[0])
            raise TableMismatchError(
                f"the {name} of row {segment.first_row + bad} must be the checkpoint's, got other bytes "
                f"(local row {start + segment.row_in_chunk + bad} of {path}).",
                hint="pack this file again: sparkctl engram pack --restart",
            )

    def _read(self, idx: int, segment: Segment) -> Bytes:
        plane = self._planes[idx]
        num_bytes = segment.num_rows * plane.row_bytes
        data = self._files[idx].read_range(
            self._buffer(idx, num_bytes), plane.row_offset_bytes(segment.first_row), num_bytes
        )
        return np.frombuffer(data, dtype=np.uint8).reshape(segment.num_rows, plane.row_bytes)

    def _buffer(self, idx: int, num_bytes: int) -> AlignedBuffer:
        buffers: dict[int, AlignedBuffer] = self._local.__dict__.setdefault("buffers", {})
        needed = num_bytes + 2 * ALIGNMENT_BYTES
        if idx not in buffers or len(buffers[idx].view) < needed:
            buffers[idx] = AlignedBuffer(needed)
        return buffers[idx]

    def close(self) -> None:
        for file in self._files:
            file.drop_cache()
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""One worker's share of packing: read a chunk's rows, lay them out in pages, checksum and write them."""

import os
import threading
from dataclasses import dataclass

from engram._core import interleave_rows
from engram.checkpoint import Plane
from engram.direct_file import ALIGNMENT_BYTES, AlignedBuffer, DirectFile
from engram.manifest import BLOCK_BYTES, block_checksum
from engram.pack_plan import FilePlan, Segment
from engram.table_format import HEADER_BYTES, PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffers:
    weight: AlignedBuffer
    scale: AlignedBuffer
    pages: AlignedBuffer


class ChunkPacker:
    """Owns the open source files and one set of buffers per thread; safe to call from many threads."""

    def __init__(self, plans: list[FilePlan], *, allow_buffered: bool) -> None:
        self._allow_buffered = allow_buffered
        self._sources: dict[os.PathLike[str], DirectFile] = {}
        for plan in plans:
            for plane in (plan.planes.weight, plan.planes.scale):
                if plane.path not in self._sources:
                    self._sources[plane.path] = DirectFile(
                        plane.path, os.O_RDONLY, allow_buffered=allow_buffered
                    )
        self._local = threading.local()

    @property
    def is_direct(self) -> bool:
        return all(source.is_direct for source in self._sources.values())

    def pack(self, plan: FilePlan, chunk_idx: int, target: DirectFile) -> bytes:
        """Writes the chunk into its place of `target`; returns the checksums of its blocks, concatenated."""
        num_bytes = plan.chunk_num_bytes(chunk_idx)
        buffers = self._buffers(plan)
        pages = buffers.pages.view[:num_bytes]
        # Rows overwrite all of it but the rest of a last, partial page.
        pages[-PAGE_BYTES:] = bytes(PAGE_BYTES)
        for segment in plan.segments(chunk_idx):
            self._fill(plan, segment, buffers, pages)
        checksums = b"".join(
            block_checksum(pages[start : start + BLOCK_BYTES]) for start in range(0, num_bytes, BLOCK_BYTES)
        )
        target.write_at(pages, HEADER_BYTES + chunk_idx * plan.chunk_bytes)
        return checksums

    def drop_cache(self) -> None:
        for source in self._sources.values():
            source.drop_cache()

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def _fill(self, plan: FilePlan, segment: Segment, buffers: _Buffers, pages: memoryview) -> None:
        interleave_rows(
            self._read(plan.planes.weight, segment, buffers.weight),
            self._read(plan.planes.scale, segment, buffers.scale),
            pages,
            weight_bytes=plan.header.weight_bytes,
            scale_bytes=plan.header.scale_bytes,
            page_bytes=PAGE_BYTES,
            first_row=segment.row_in_chunk,
            num_rows=segment.num_rows,
        )

    def _read(self, plane: Plane, segment: Segment, buffer: AlignedBuffer) -> memoryview:
        return self._sources[plane.path].read_range(
            buffer, plane.row_offset_bytes(segment.first_row), segment.num_rows * plane.row_bytes
        )

    def _buffers(self, plan: FilePlan) -> _Buffers:
        # All layers of a checkpoint have rows of one size, so the first plan's buffers fit every other.
        buffers: _Buffers | None = getattr(self._local, "buffers", None)
        if buffers is None:
            spare = 2 * ALIGNMENT_BYTES
            buffers = _Buffers(
                weight=AlignedBuffer(plan.rows_per_chunk * plan.header.weight_bytes + spare),
                scale=AlignedBuffer(plan.rows_per_chunk * plan.header.scale_bytes + spare),
                pages=AlignedBuffer(plan.chunk_bytes),
            )
            self._local.buffers = buffers
        return buffers

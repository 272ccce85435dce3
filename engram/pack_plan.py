"""Pure: which files a packing run writes, in which chunks, from which rows of the checkpoint."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from engram.checkpoint import Checkpoint, TablePlanes
from engram.errors import PackError
from engram.manifest import BLOCK_BYTES
from engram.table_format import MAX_TP, PAGE_BYTES, TableHeader, deal_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """num_rows rows from first_row of the layer's table on; they start at row_in_chunk of a chunk."""

    first_row: int
    num_rows: int
    row_in_chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """One packed file. A chunk is what one worker reads, interleaves, checksums and writes in one go."""

    header: TableHeader
    planes: TablePlanes
    chunk_bytes: int

    @property
    def pages_per_chunk(self) -> int:
        return self.chunk_bytes // PAGE_BYTES

    @property
    def rows_per_chunk(self) -> int:
        return self.pages_per_chunk * self.header.rows_per_page

    @property
    def num_chunks(self) -> int:
        return -(-self.header.num_pages // self.pages_per_chunk)

    def chunk_rows(self, chunk_idx: int) -> tuple[int, int]:
        """[start, end) of the chunk's local rows."""
        start = chunk_idx * self.rows_per_chunk
        return start, min(start + self.rows_per_chunk, self.header.num_rows)

    def chunk_num_bytes(self, chunk_idx: int) -> int:
        start, end = self.chunk_rows(chunk_idx)
        return -(-(end - start) // self.header.rows_per_page) * PAGE_BYTES

    def segments(self, chunk_idx: int) -> list[Segment]:
        """The chunk's rows in order; one segment per column that it touches."""
        return find_segments(self.header, *self.chunk_rows(chunk_idx))


def find_segments(header: TableHeader, start: int, end: int) -> list[Segment]:
    """Where local rows [start, end) of a file lie in the layer's table, in order."""
    columns = header.columns
    ends = list(accumulate(column.num_rows for column in columns))
    found, row = [], start
    while row < end:
        idx = bisect_right(ends, row)
        column, column_start = columns[idx], ends[idx] - columns[idx].num_rows
        num_rows = min(end, ends[idx]) - row
        found.append(
            Segment(
                first_row=column.first_row + row - column_start,
                num_rows=num_rows,
                row_in_chunk=row - start,
            )
        )
        row += num_rows
    return found


def plan_files(
    checkpoint: Checkpoint,
    *,
    tp: int,
    ranks: tuple[int, ...],
    layer_ids: tuple[int, ...],
    chunk_bytes: int,
) -> list[FilePlan]:
    """One plan per (layer, rank). tp 1 is the full replica."""
    if chunk_bytes < BLOCK_BYTES or chunk_bytes % BLOCK_BYTES:
        raise ValueError(f"chunk_bytes must be a multiple of {BLOCK_BYTES}, got {chunk_bytes}")
    num_columns = checkpoint.layout.num_columns
    if not 1 <= tp <= min(MAX_TP, num_columns):
        raise PackError(
            f"--tp must be 1 to {min(MAX_TP, num_columns)}, got {tp} (command line).",
            hint="pass the number of nodes that share the tables, or 1 for a full replica",
        )
    for rank in ranks:
        if not 0 <= rank < tp:
            raise PackError(
                f"the rank must be 0 to {tp - 1} at --tp {tp}, got {rank} (command line).",
                hint="ranks count from 0; a full replica is rank 0 of --tp 1",
            )
    return [
        _plan_file(checkpoint, layer_id, rank, tp, chunk_bytes)
        for layer_id in dict.fromkeys(layer_ids)
        for rank in sorted(set(ranks))
    ]


def order_chunks(plans: list[FilePlan], next_chunks: list[int]) -> list[tuple[int, int]]:
    """(plan index, chunk index) of all chunks still to do, in the order of the checkpoint's bytes.

    So all ranks of a node come out of one pass over the source, and each file still grows from front to back.
    """
    keyed = [
        (plan.planes.layer_id, plan.segments(chunk_idx)[0].first_row, plan_idx, chunk_idx)
        for plan_idx, (plan, first) in enumerate(zip(plans, next_chunks, strict=True))
        for chunk_idx in range(first, plan.num_chunks)
    ]
    return [(plan_idx, chunk_idx) for _, _, plan_idx, chunk_idx in sorted(keyed)]


def _plan_file(checkpoint: Checkpoint, layer_id: int, rank: int, tp: int, chunk_bytes: int) -> FilePlan:
    planes = checkpoint.table(layer_id)
    header = TableHeader(
        layer_id=layer_id,
        rank=rank,
        tp=tp,
        weight_bytes=planes.weight.row_bytes,
        scale_bytes=planes.scale.row_bytes,
        total_rows=planes.num_rows,
        source_revision=checkpoint.revision,
        columns=deal_columns(checkpoint.layout.column_bounds(layer_id), rank, tp),
    )
    return FilePlan(header=header, planes=planes, chunk_bytes=chunk_bytes)

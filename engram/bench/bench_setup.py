"""What all measurements share: the table, the traces, and memory for rows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engram.bench.clocks import Spent, measure
from engram.bench.text_trace import Kind, TextTrace
from engram.row_source import RowPlanes
from engram.row_store import RowStore
from engram.table_format import TableHeader

CHUNK_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSetup:
    table: Path
    header: TableHeader
    traces: dict[Kind, TextTrace]
    queue_depth: int
    rng: np.random.Generator

    def random_rows(self, count: int) -> NDArray[np.int64]:
        """Distinct ids, uniform over the table."""
        ids = np.unique(self.rng.integers(0, self.header.num_rows, count + count // 8 + 64))
        return self.rng.permutation(ids)[:count].astype(np.int64)

    def chunk(self, kind: Kind, chunk_idx: int, *, mixed: bool = False) -> NDArray[np.int64]:
        """Ids [tokens x columns] of the trace's chunk, as one prefill step asks for them."""
        trace = self.traces[kind].mixed if mixed else self.traces[kind].together
        rows = trace[chunk_idx * CHUNK_TOKENS : (chunk_idx + 1) * CHUNK_TOKENS]
        assert len(rows) == CHUNK_TOKENS, "the trace is too short"
        return np.ascontiguousarray(rows).reshape(-1)


class RowMemory:
    """Planes for up to `count` rows, touched once so that page faults are not measured."""

    def __init__(self, header: TableHeader, count: int) -> None:
        self.weight = np.full((count, header.weight_bytes), 1, dtype=np.uint8)
        self.scale = np.full((count, header.scale_bytes), 1, dtype=np.uint8)
        self.planes = RowPlanes(weight=self.weight, scale=self.scale)


def read_once(store: RowStore, layer_id: int, ids: NDArray[np.int64], memory: RowMemory) -> Spent:
    return measure(lambda: store.submit(layer_id, ids, memory.planes).wait())

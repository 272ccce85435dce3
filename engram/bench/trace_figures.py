"""How much repetition a trace has: without these figures no rate on real text means anything."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFigures:
    """Means over the chunks that a measurement reads."""

    rows_per_chunk: float
    unique_share: float
    """Distinct rows over rows, within a chunk."""
    rows_per_page: float
    """Rows asked for over distinct pages, within a chunk: what one page read can serve."""
    seen_before_share: float
    """Rows of a chunk that an earlier chunk of the trace had asked for."""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def chunk_figures(chunks: list[NDArray[np.int64]], rows_per_page: int) -> ChunkFigures:
    rows, unique, pages, seen_rows = 0, 0, 0, 0
    seen = np.empty(0, dtype=np.int64)
    for chunk in chunks:
        ids = chunk.reshape(-1)
        distinct = np.unique(ids)
        rows += len(ids)
        unique += len(distinct)
        pages += len(np.unique(distinct // rows_per_page))
        seen_rows += int(np.isin(ids, seen).sum())
        seen = np.union1d(seen, distinct)
    return ChunkFigures(
        rows_per_chunk=rows / len(chunks),
        unique_share=unique / rows,
        rows_per_page=rows / pages,
        seen_before_share=seen_rows / rows,
    )


def count_pages(ids: NDArray[np.int64], rows_per_page: int) -> int:
    """Distinct pages of a full table's rows (one owned range, so local rows are global ids)."""
    return len(np.unique(ids.reshape(-1) // rows_per_page))

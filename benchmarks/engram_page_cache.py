"""Would a cache of whole 4 KiB pages read less than one of rows? Counts on the bench traces; untimed.

python benchmarks/engram_page_cache.py TRACE_DIR OUT.json     TRACE_DIR: `trace` in the folder of engram bench
"""

import json
import sys
from pathlib import Path

import numpy as np
from engram._core import CachePolicy
from numpy.typing import NDArray

from engram.bench.bench_setup import CHUNK_TOKENS
from engram.bench.measure_cache import CACHE_TOKENS, CHUNKS_PER_ROUND, WARM_CHUNKS
from engram.bench.rounds import NUM_ROUNDS
from engram.bench.run_bench import default_text_roots
from engram.bench.synthetic_table import COLUMN_ROWS, make_header
from engram.bench.text_trace import load_traces
from engram.bench.trace_figures import count_pages
from engram.table_format import PAGE_BYTES


def count_reads(trace: NDArray[np.int64]) -> dict[str, int]:
    header = make_header(COLUMN_ROWS)
    cache_bytes = CACHE_TOKENS * len(header.columns) * header.row_bytes
    pages = CachePolicy(name="s3fifo", weight_bytes=PAGE_BYTES, scale_bytes=0, cache_bytes=cache_bytes)
    rows = CachePolicy(
        name="s3fifo",
        weight_bytes=header.weight_bytes,
        scale_bytes=header.scale_bytes,
        cache_bytes=cache_bytes,
    )
    seen = np.zeros(header.num_rows, dtype=bool)
    counts = {"page_cache_page_reads": 0, "row_cache_missed_rows": 0, "endless_row_cache_page_reads": 0}
    for idx in range(WARM_CHUNKS + NUM_ROUNDS * CHUNKS_PER_ROUND):
        ids = np.ascontiguousarray(trace[idx * CHUNK_TOKENS : (idx + 1) * CHUNK_TOKENS]).reshape(-1)
        _, page_reads = pages.step(ids // header.rows_per_page)
        _, missed_rows = rows.step(ids)
        new_pages = count_pages(ids[~seen[ids]], header.rows_per_page)
        seen[ids] = True
        if idx >= WARM_CHUNKS:
            counts["page_cache_page_reads"] += page_reads
            counts["row_cache_missed_rows"] += missed_rows
            counts["endless_row_cache_page_reads"] += new_pages
    return counts


def main(trace_dir: Path, out: Path) -> None:
    traces = load_traces(trace_dir, default_text_roots(), COLUMN_ROWS)
    report = {
        f"{kind}{suffix}": count_reads(rows)
        for kind, trace in traces.items()
        for suffix, rows in (("", trace.together), ("-mixed", trace.mixed))
    }
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""A process of its own: fills a cache, reads ahead, submits the largest request, prints its memory."""

import json
import re
import sys
import time
from pathlib import Path

import numpy as np

from engram._core import MAX_IDS_PER_SUBMIT
from engram.bench.bench_setup import RowMemory
from engram.row_store import open_row_store
from engram.table_format import HEADER_BYTES, parse_header

CACHE_BYTES = 256 << 20
LOOKAHEAD_BYTES = 64 << 20
LARGE_ROWS = 200_000
ROUNDS = 6


def main(table: Path, queue_depth: int) -> None:
    with table.open("rb") as file:
        header = parse_header(file.read(HEADER_BYTES), str(table))
    rng = np.random.default_rng(0)
    ids = rng.integers(0, header.num_rows, (ROUNDS, LARGE_ROWS), dtype=np.int64)
    # The caller's memory, and the largest plan that a single submit can need, are not the store's cache.
    largest = np.resize(ids[0][:LARGE_ROWS], MAX_IDS_PER_SUBMIT)
    memory = RowMemory(header, MAX_IDS_PER_SUBMIT)
    before = _resident_bytes()
    with open_row_store(
        [table],
        cache_bytes=CACHE_BYTES,
        lookahead_budget_bytes=LOOKAHEAD_BYTES,
        queue_depth=queue_depth,
    ) as store:
        store.submit(header.layer_id, largest, memory.planes).wait()
        for round_idx in range(ROUNDS):
            store.prefetch(1, header.layer_id, ids[round_idx])
            time.sleep(1)
            store.submit(header.layer_id, ids[round_idx], memory.planes).wait()
            store.cancel_request(1)
        counters = store.counters()
        assert counters.cached_rows > 0.9 * counters.cache_slots, "the cache must be full"
        peak = _peak_bytes()
    configured = CACHE_BYTES + LOOKAHEAD_BYTES
    report = {
        "before_bytes": before,
        "peak_bytes": peak,
        "configured_bytes": configured,
        "over_cache_bytes": peak - before - configured,
        "cached_rows": counters.cached_rows,
    }
    print(json.dumps(report))


def _status_bytes(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def _resident_bytes() -> int:
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    return _status_bytes("VmHWM")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

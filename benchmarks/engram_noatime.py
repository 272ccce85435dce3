"""What O_NOATIME saves of a missed row's processor time: the same store, with and without, in turn.

python -m benchmarks.engram_noatime DIRECTORY OUT.json     DIRECTORY: the folder of engram bench
"""

import fcntl
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engram.bench.bench_setup import RowMemory, read_once
from engram.bench.machine_load import read_load
from engram.bench.rounds import Sample, alternate, median_of, median_ratio
from engram.bench.synthetic_table import COLUMN_ROWS, ensure_table, make_header
from engram.row_store import RowStore, open_row_store

NUM_ROUNDS = 15
NUM_ROWS = 131_072
QUEUE_DEPTH = 256


def open_files_of(table: Path) -> set[int]:
    links = {int(link.name): os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
    return {fd for fd, target in links.items() if target == str(table.resolve())}


def measure(table: Path) -> dict[str, object]:
    header = make_header(COLUMN_ROWS)
    memory = RowMemory(header, NUM_ROWS)
    rng = np.random.default_rng()

    def distinct_rows() -> NDArray[np.int64]:
        ids = np.unique(rng.integers(0, header.num_rows, NUM_ROWS + NUM_ROWS // 8))
        return rng.permutation(ids)[:NUM_ROWS].astype(np.int64)

    def reader(store: RowStore) -> Callable[[int], Sample]:
        def read(_: int) -> Sample:
            spent = read_once(store, header.layer_id, distinct_rows(), memory)
            return {
                "cpu_us_per_row": spent.cpu_s / NUM_ROWS * 1e6,
                "user_us_per_row": spent.user_s / NUM_ROWS * 1e6,
                "rows_per_s": NUM_ROWS / spent.wall_s,
            }

        return read

    load = read_load()
    with open_row_store([table], queue_depth=QUEUE_DEPTH, max_pages_per_read=1) as with_atime:
        # io_uring holds the same open file, so the flag counts for its reads too.
        for fd in open_files_of(table):
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            assert flags & os.O_NOATIME, "the table must belong to this user"
            fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_NOATIME)
        with open_row_store([table], queue_depth=QUEUE_DEPTH, max_pages_per_read=1) as store:
            contenders = {"atime": reader(with_atime), "noatime": reader(store)}
            rounds = alternate(contenders, NUM_ROUNDS, rotate=True)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "load_before": asdict(load),
        "rows": NUM_ROWS,
        "queue_depth": QUEUE_DEPTH,
        "cpu_noatime_over_atime": median_ratio(
            rounds, ("noatime", "cpu_us_per_row"), ("atime", "cpu_us_per_row")
        ),
        "cpu_us_per_row": {name: median_of(rounds, name, "cpu_us_per_row") for name in contenders},
        "rounds": rounds,
    }


if __name__ == "__main__":
    report = measure(ensure_table(Path(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps(report, indent=1) + "\n")
    print({name: value for name, value in report.items() if name != "rounds"})

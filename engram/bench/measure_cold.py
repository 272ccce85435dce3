"""Cold rows against fio: how much of the disk's rate reaches the caller."""

from engram.bench.bench_setup import BenchSetup, RowMemory, read_once
from engram.bench.fio import run_fio
from engram.bench.rounds import Figure, Sample, alternate, median_of, median_ratio
from engram.row_store import open_row_store

DEPTHS = (32, 64, 128, 256)
FIO_S = 2.0
NUM_ROWS = 131_072


def measure_cold_rows(setup: BenchSetup, depth: int) -> Figure:
    """Pages per second of distinct random rows, over fio's 4 KiB random reads at the same depth."""
    memory = RowMemory(setup.header, NUM_ROWS)
    layer_id = setup.header.layer_id
    with open_row_store([setup.table], queue_depth=depth) as store:

        def ours(_: int) -> Sample:
            before = store.counters()
            spent = read_once(store, layer_id, setup.random_rows(NUM_ROWS), memory)
            after = store.counters()
            pages = after.pages - before.pages
            return {
                "pages_per_s": pages / spent.wall_s,
                "disk_reads_per_s": (after.reads - before.reads) / spent.wall_s,
                "user_s_per_row": spent.user_s / NUM_ROWS,
                "system_s_per_row": spent.system_s / NUM_ROWS,
            }

        def fio(_: int) -> Sample:
            return run_fio(setup.table, iodepth=depth, runtime_s=FIO_S).as_dict()

        rounds = alternate({"fio": fio, "ours": ours})
    return Figure(
        name=f"cold random rows, depth {depth}: page reads/s over fio",
        value=median_ratio(rounds, ("ours", "pages_per_s"), ("fio", "iops")),
        bar=0.95,
        at_most=False,
        samples=rounds,
        notes={
            # Neighbouring pages share a read, so the disk saw fewer reads than pages.
            "disk_reads_over_fio": median_ratio(rounds, ("ours", "disk_reads_per_s"), ("fio", "iops")),
            "ours_pages_per_s": median_of(rounds, "ours", "pages_per_s"),
            "fio_iops": median_of(rounds, "fio", "iops"),
        },
    )

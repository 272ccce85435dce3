"""Cold rows against fio: how much of the disk's rate reaches the caller."""

from collections.abc import Callable

from engram.bench.bench_setup import BenchSetup, RowMemory, read_once
from engram.bench.fio import run_fio
from engram.bench.rounds import Figure, Sample, alternate, median_of, median_ratio
from engram.row_store import RowStore, open_row_store

DEPTHS = (32, 64, 128, 256)
FIO_S = 2.0
NUM_ROWS = 131_072
SINGLE_READS = "4 KiB reads only"
MERGED_READS = "neighbouring pages merged"


def measure_cold_rows(setup: BenchSetup, depth: int) -> tuple[Figure, Figure]:
    """Distinct random rows against fio's 4 KiB random reads at the same depth.

    Two stores take turns with fio: one that reads each page by itself, as fio does, and one as users open it,
    whose reads may bring neighbouring pages too.
    """
    memory = RowMemory(setup.header, NUM_ROWS)
    layer_id = setup.header.layer_id

    def contender(store: RowStore) -> Callable[[int], Sample]:
        def read(_: int) -> Sample:
            before = store.counters()
            spent = read_once(store, layer_id, setup.random_rows(NUM_ROWS), memory)
            after = store.counters()
            return {
                "pages_per_s": (after.pages - before.pages) / spent.wall_s,
                "disk_reads_per_s": (after.reads - before.reads) / spent.wall_s,
                "user_s_per_row": spent.user_s / NUM_ROWS,
                "system_s_per_row": spent.system_s / NUM_ROWS,
            }

        return read

    rounds = alternate_with_fio(setup, depth, contender)

    def figure(name: str, label: str) -> Figure:
        return Figure(
            name=f"cold random rows, depth {depth}, {label}: pages/s over fio's reads/s",
            value=median_ratio(rounds, (name, "pages_per_s"), ("fio", "iops")),
            bar=0.95,
            at_most=False,
            samples=rounds,
            notes={
                "disk_reads_over_fio": median_ratio(rounds, (name, "disk_reads_per_s"), ("fio", "iops")),
                "ours_pages_per_s": median_of(rounds, name, "pages_per_s"),
                "fio_iops": median_of(rounds, "fio", "iops"),
            },
        )

    return figure("single", SINGLE_READS), figure("merging", MERGED_READS)


def alternate_with_fio(
    setup: BenchSetup, depth: int, contender: Callable[[RowStore], Callable[[int], Sample]]
) -> tuple[dict[str, Sample], ...]:
    """Rounds of `fio` and of a contender on two stores: `single` reads each page by itself, `merging` not."""

    def fio(_: int) -> Sample:
        return run_fio(setup.table, iodepth=depth, runtime_s=FIO_S).as_dict()

    with (
        open_row_store([setup.table], queue_depth=depth, max_pages_per_read=1) as single,
        open_row_store([setup.table], queue_depth=depth) as merging,
    ):
        contenders = {"fio": fio, "single": contender(single), "merging": contender(merging)}
        return alternate(contenders, rotate=True)

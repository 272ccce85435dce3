"""What a row costs: processor time of a hit and of a miss, and memory beyond the configured cache."""

import json
import subprocess
import sys
from collections.abc import Callable

from engram.bench.bench_setup import BenchSetup, RowMemory, read_once
from engram.bench.clocks import measure
from engram.bench.measure_cold import MERGED_READS, SINGLE_READS, alternate_with_fio
from engram.bench.rounds import NUM_ROUNDS, Figure, Sample, alternate, median_of
from engram.bench.text_trace import Kind
from engram.errors import EngramError
from engram.row_store import RowStore, open_row_store

HIT_BYTES = 512 << 20
DECODE_ROWS = 288


def measure_hit_cpu(setup: BenchSetup, kind: Kind) -> Figure:
    """All of a submit whose rows are in the cache, in batches of a decode step and of a prefill chunk.

    The chunks together hold more rows than the processor's caches, as a real row cache does.
    """
    header = setup.header
    chunks = [setup.chunk(kind, idx) for idx in range(NUM_ROUNDS)]
    memory = RowMemory(header, len(chunks[0]))
    with open_row_store([setup.table], queue_depth=setup.queue_depth, cache_bytes=HIT_BYTES) as store:
        for chunk in (*chunks, *chunks):
            read_once(store, header.layer_id, chunk, memory)

        def prefill(round_idx: int) -> Sample:
            misses = store.counters().missed_rows
            spent = read_once(store, header.layer_id, chunks[round_idx], memory)
            assert store.counters().missed_rows == misses, "a row was not in the cache"
            return {"cpu_s_per_row": spent.cpu_s / len(chunks[round_idx])}

        def decode(round_idx: int) -> Sample:
            ids = chunks[round_idx]
            batches = [
                ids[start : start + DECODE_ROWS] for start in range(0, len(ids) - DECODE_ROWS, DECODE_ROWS)
            ]

            def steps() -> None:
                for batch in batches:
                    store.submit(header.layer_id, batch, memory.planes).wait()

            return {"cpu_s_per_row": measure(steps).cpu_s / (len(batches) * DECODE_ROWS)}

        rounds = alternate({"prefill": prefill, "decode": decode})
    worst = max(median_of(rounds, name, "cpu_s_per_row") for name in ("prefill", "decode"))
    return Figure(
        name=f"CPU time per hit row ({kind} rows, worse of decode batch and prefill chunk)",
        value=worst * 1e6,
        bar=0.3,
        at_most=True,
        unit="us",
        samples=rounds,
        notes={
            f"{name}_us": median_of(rounds, name, "cpu_s_per_row") * 1e6 for name in ("prefill", "decode")
        },
    )


def measure_miss_cpu(setup: BenchSetup) -> tuple[Figure, Figure]:
    """Distinct random rows; user and system time; each page read by itself, and as users open the store.

    In so small a table a fifth of the pages share a read; in the released model's few do.
    """
    count = 131_072
    memory = RowMemory(setup.header, count)

    def contender(store: RowStore) -> Callable[[int], Sample]:
        def read(_: int) -> Sample:
            spent = read_once(store, setup.header.layer_id, setup.random_rows(count), memory)
            return {"user_s_per_row": spent.user_s / count, "cpu_s_per_row": spent.cpu_s / count}

        return read

    rounds = alternate_with_fio(setup, setup.queue_depth, contender)

    def figure(name: str, label: str) -> Figure:
        return Figure(
            name=f"CPU time per missed row (distinct random rows), user and system, {label}",
            value=median_of(rounds, name, "cpu_s_per_row") * 1e6,
            bar=1.5,
            at_most=True,
            unit="us",
            samples=rounds,
            notes={
                "user_us": median_of(rounds, name, "user_s_per_row") * 1e6,
                # fio does nothing with the data: the kernel's own price of a read on this machine.
                "fio_us_per_read": median_of(rounds, "fio", "cpu_s_per_read") * 1e6,
            },
        )

    return figure("single", SINGLE_READS), figure("merging", MERGED_READS)


def measure_memory(setup: BenchSetup) -> Figure:
    """Growth of a fresh process's peak resident memory over its configured cache and look-ahead budget."""
    command = [sys.executable, "-m", "engram.bench.memory_probe", str(setup.table), str(setup.queue_depth)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    if done.returncode != 0:
        raise EngramError(f"memory_probe must succeed, got: {done.stderr.strip()[-500:]}.")
    probe: dict[str, float] = json.loads(done.stdout)
    return Figure(
        name="peak memory over the configured cache",
        value=probe["over_cache_bytes"] / (1 << 20),
        bar=64.0,
        at_most=True,
        unit="MiB",
        notes=probe,
    )

"""Decode steps: 288 rows, alone and while a large look-ahead runs."""

import time

import numpy as np

from engram.bench.bench_setup import BenchSetup, RowMemory
from engram.bench.fio import run_fio
from engram.bench.rounds import Figure, Sample, alternate, median_of, median_ratio
from engram.row_store import RowStore, open_row_store

BATCH_ROWS = 288  # 6 tokens x 48 rows
STEPS = 120
LOOKAHEAD_ROWS = 100_000
# Time between decode steps, in which the model computes; far shorter than real steps, so harder.
STEP_GAP_S = 0.005
FIO_S = 2.0


def measure_decode_p50(setup: BenchSetup) -> Figure:
    """p50 of a batch over the time in which fio, at the same depth, would have read as many pages."""
    memory = RowMemory(setup.header, BATCH_ROWS)
    depth = max(BATCH_ROWS, setup.queue_depth)
    with open_row_store([setup.table], queue_depth=depth) as store:

        def fio(_: int) -> Sample:
            result = run_fio(setup.table, iodepth=BATCH_ROWS, runtime_s=FIO_S)
            return {**result.as_dict(), "bound_s": BATCH_ROWS / result.iops}

        def ours(_: int) -> Sample:
            return _percentiles(_run_steps(setup, store, memory, STEPS))

        rounds = alternate({"fio": fio, "ours": ours})
    return Figure(
        name=f"decode batch of {BATCH_ROWS} rows: p50 over the fio-derived bound",
        value=median_ratio(rounds, ("ours", "p50_s"), ("fio", "bound_s")),
        bar=1.3,
        at_most=True,
        samples=rounds,
        notes={"p50_s": median_of(rounds, "ours", "p50_s"), "bound_s": median_of(rounds, "fio", "bound_s")},
    )


def measure_decode_beside_lookahead(setup: BenchSetup) -> Figure:
    memory = RowMemory(setup.header, BATCH_ROWS)
    depth = max(BATCH_ROWS, setup.queue_depth)
    budget_bytes = LOOKAHEAD_ROWS * 3 * setup.header.row_bytes
    layer_id = setup.header.layer_id
    with open_row_store([setup.table], queue_depth=depth, lookahead_budget_bytes=budget_bytes) as store:

        def idle(_: int) -> Sample:
            return _percentiles(_run_steps(setup, store, memory, STEPS))

        def beside(round_idx: int) -> Sample:
            steps: list[float] = []
            staged_before = store.counters().lookahead_staged_rows
            started = time.perf_counter()
            prefetches = 0
            while len(steps) < STEPS:
                # Announced again whenever the last one is through, so that every step meets a running one.
                store.prefetch(round_idx, layer_id, setup.random_rows(LOOKAHEAD_ROWS))
                prefetches += 1
                planned = store.counters().lookahead_staged_rows
                while (
                    len(steps) < STEPS
                    and store.counters().lookahead_staged_rows - planned < LOOKAHEAD_ROWS * 0.9
                ):
                    steps += _run_steps(setup, store, memory, 4)
                store.cancel_request(round_idx)
            wall_s = time.perf_counter() - started
            staged = store.counters().lookahead_staged_rows - staged_before
            return {
                **_percentiles(steps),
                "lookahead_rows_per_s": staged / wall_s,
                "prefetches": float(prefetches),
            }

        rounds = alternate({"idle": idle, "beside": beside})
    return Figure(
        name=f"decode batch of {BATCH_ROWS} rows: p99 beside a {LOOKAHEAD_ROWS}-row look-ahead over idle p99",
        value=median_ratio(rounds, ("beside", "p99_s"), ("idle", "p99_s")),
        bar=2.0,
        at_most=True,
        samples=rounds,
        notes={
            "idle_p99_s": median_of(rounds, "idle", "p99_s"),
            "beside_p99_s": median_of(rounds, "beside", "p99_s"),
            "p50_ratio": median_ratio(rounds, ("beside", "p50_s"), ("idle", "p50_s")),
            "lookahead_rows_per_s": median_of(rounds, "beside", "lookahead_rows_per_s"),
        },
    )


def _run_steps(setup: BenchSetup, store: RowStore, memory: RowMemory, num_steps: int) -> list[float]:
    latencies = []
    for _ in range(num_steps):
        ids = setup.random_rows(BATCH_ROWS)
        time.sleep(STEP_GAP_S)
        started = time.perf_counter()
        store.submit(setup.header.layer_id, ids, memory.planes).wait()
        latencies.append(time.perf_counter() - started)
    return latencies


def _percentiles(latencies: list[float]) -> Sample:
    p50, p90, p99 = np.percentile(latencies, [50, 90, 99])
    return {"p50_s": float(p50), "p90_s": float(p90), "p99_s": float(p99), "steps": float(len(latencies))}

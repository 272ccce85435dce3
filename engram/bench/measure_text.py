"""Prefill chunks of real text without a cache: against fio, and against a reader as peers have it."""

from engram._core import ReferenceReader
from engram.bench.bench_setup import CHUNK_TOKENS, BenchSetup, RowMemory, read_once
from engram.bench.clocks import measure
from engram.bench.fio import run_fio
from engram.bench.rounds import NUM_ROUNDS, Figure, Sample, alternate, median_of, median_ratio
from engram.bench.text_trace import Kind
from engram.bench.trace_figures import chunk_figures, count_pages
from engram.row_store import open_row_store

REFERENCE_THREADS = 96
REFERENCE_BARS: dict[Kind, float] = {"prose": 1.5, "code": 2.0}
FIO_S = 2.0
# Chunks far apart in the trace, so that no two rounds read the same rows from a warm drive.
CHUNK_STRIDE = 37


def measure_cold_text(setup: BenchSetup, kind: Kind) -> tuple[Figure, Figure]:
    header = setup.header
    chunks = [setup.chunk(kind, round_idx * CHUNK_STRIDE) for round_idx in range(NUM_ROUNDS)]
    memory = RowMemory(header, len(chunks[0]))
    reference = ReferenceReader(path=str(setup.table), num_threads=REFERENCE_THREADS, cache_bytes=0)
    with open_row_store([setup.table], queue_depth=setup.queue_depth) as store:

        def fio(round_idx: int) -> Sample:
            result = run_fio(setup.table, iodepth=setup.queue_depth, runtime_s=FIO_S)
            ids = chunks[round_idx]
            rows_per_page = len(ids) / count_pages(ids, header.rows_per_page)
            return {**result.as_dict(), "allowed_rows_per_s": result.iops * rows_per_page}

        def ours(round_idx: int) -> Sample:
            spent = read_once(store, header.layer_id, chunks[round_idx], memory)
            return {"rows_per_s": len(chunks[round_idx]) / spent.wall_s, "cpu_s": spent.cpu_s}

        def peers(round_idx: int) -> Sample:
            ids = chunks[round_idx]
            spent = measure(lambda: _read(reference, ids, memory))
            return {"rows_per_s": len(ids) / spent.wall_s, "cpu_s": spent.cpu_s}

        # A virtual disk's host may keep what was just read. Against fio, on new pages: "ours". Against
        # the reference, both on pages that were read just before: "ours_again".
        rounds = alternate({"fio": fio, "ours": ours, "reference": peers, "ours_again": ours})
    notes = {
        **chunk_figures(chunks, header.rows_per_page).as_dict(),
        "chunk_tokens": CHUNK_TOKENS,
        "ours_rows_per_s": median_of(rounds, "ours", "rows_per_s"),
        "reference_rows_per_s": median_of(rounds, "reference", "rows_per_s"),
        "fio_iops": median_of(rounds, "fio", "iops"),
    }
    over_fio = Figure(
        name=f"{kind}, cold, no cache: rows/s over what fio's IOPS allow",
        value=median_ratio(rounds, ("ours", "rows_per_s"), ("fio", "allowed_rows_per_s")),
        bar=0.90,
        at_most=False,
        samples=rounds,
        notes=notes,
    )
    over_reference = Figure(
        name=f"{kind}, cold, no cache: rows/s over the reference reader",
        value=median_ratio(rounds, ("ours_again", "rows_per_s"), ("reference", "rows_per_s")),
        bar=REFERENCE_BARS[kind],
        at_most=False,
        samples=rounds,
        notes=notes,
    )
    return over_fio, over_reference


def _read(reference: ReferenceReader, ids: object, memory: RowMemory) -> None:
    error = reference.read(ids, memory.weight, memory.scale)
    if error != 0:
        raise OSError(-error, "reference reader")

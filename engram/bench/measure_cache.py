"""Steady state with a row cache, against the reference reader without and with a set-associative cache."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engram._core import ReferenceReader
from engram.bench.bench_setup import BenchSetup, RowMemory, read_once
from engram.bench.clocks import measure
from engram.bench.measure_text import REFERENCE_THREADS, _read
from engram.bench.rounds import NUM_ROUNDS, Figure, Sample, alternate, median_of, median_ratio
from engram.bench.text_trace import Kind
from engram.bench.trace_figures import chunk_figures, count_pages
from engram.row_store import open_row_store

CACHE_TOKENS = 65_536
# Three times the cache's rows have passed before the first measured chunk.
WARM_CHUNKS = 24
# Chunks differ a lot in how much of them is new; a round of several is closer to the trace as a whole.
CHUNKS_PER_ROUND = 3


def measure_steady_cache(setup: BenchSetup, kind: Kind, *, mixed: bool = False) -> tuple[Figure, Figure]:
    header = setup.header
    cache_bytes = CACHE_TOKENS * len(header.columns) * header.row_bytes
    num_chunks = WARM_CHUNKS + NUM_ROUNDS * CHUNKS_PER_ROUND
    chunks = [setup.chunk(kind, idx, mixed=mixed) for idx in range(num_chunks)]
    memory = RowMemory(header, len(chunks[0]))
    plain = ReferenceReader(path=str(setup.table), num_threads=REFERENCE_THREADS, cache_bytes=0)
    cached = ReferenceReader(path=str(setup.table), num_threads=REFERENCE_THREADS, cache_bytes=cache_bytes)
    with (
        open_row_store([setup.table], queue_depth=setup.queue_depth) as toucher,
        open_row_store([setup.table], queue_depth=setup.queue_depth, cache_bytes=cache_bytes) as store,
    ):
        for chunk in chunks[:WARM_CHUNKS]:
            read_once(store, header.layer_id, chunk, memory)
            _read(cached, chunk, memory)

        def touch(ids: NDArray[np.int64]) -> Sample:
            # A virtual disk's host may keep what was just read: everybody finds these pages read once.
            read_once(toucher, header.layer_id, ids, memory)
            return {}

        def ours(ids: NDArray[np.int64]) -> Sample:
            before = store.counters()
            spent = read_once(store, header.layer_id, ids, memory)
            after = store.counters()
            return {
                "wall_s": spent.wall_s,
                "cpu_s": spent.cpu_s,
                "hit_rows": float(after.hit_rows - before.hit_rows),
                "pages": float(after.pages - before.pages),
                "reads": float(after.reads - before.reads),
            }

        def reference(reader: ReferenceReader, ids: NDArray[np.int64]) -> Sample:
            hits = reader.hits
            spent = measure(lambda: _read(reader, ids, memory))
            hits = reader.hits - hits
            return {
                "wall_s": spent.wall_s,
                "cpu_s": spent.cpu_s,
                "hit_rows": float(hits),
                "reads": float(len(ids) - hits),
            }

        measured = chunks[WARM_CHUNKS:]
        rounds = alternate(
            {
                "touch": _over_round(measured, touch),
                "ours": _over_round(measured, ours),
                "reference": _over_round(measured, lambda ids: reference(plain, ids)),
                "reference_cached": _over_round(measured, lambda ids: reference(cached, ids)),
            }
        )
    notes = {
        **chunk_figures(chunks, header.rows_per_page).as_dict(),
        **_limits(
            chunks, header.rows_per_page, sum(round_["reference_cached"]["reads"] for round_ in rounds)
        ),
        "cache_bytes": float(cache_bytes),
        "ours_hit_share": median_of(rounds, "ours", "hit_share"),
        # Repeats within a chunk are hits for the reference once the first has been read.
        "reference_cached_hit_share": median_of(rounds, "reference_cached", "hit_share"),
        "ours_rows_per_s": median_of(rounds, "ours", "rows_per_s"),
        "reference_rows_per_s": median_of(rounds, "reference", "rows_per_s"),
        "reference_cached_rows_per_s": median_of(rounds, "reference_cached", "rows_per_s"),
    }

    text = f"{kind}, files mixed" if mixed else kind

    def figure(name: str, rival: str, bar: float) -> Figure:
        return Figure(
            name=f"{text}, steady state, cache of 64 k tokens: rows/s over the reference {name}",
            value=median_ratio(rounds, ("ours", "rows_per_s"), (rival, "rows_per_s")),
            bar=bar,
            at_most=False,
            samples=rounds,
            notes=notes,
        )

    return figure("without cache", "reference", 3.0), figure("with 16-way cache", "reference_cached", 1.3)


def _over_round(
    chunks: list[NDArray[np.int64]], read: Callable[[NDArray[np.int64]], Sample]
) -> Callable[[int], Sample]:
    """Reads a round's chunks one after the other; sums of the samples, and rates from the sums."""

    def contender(round_idx: int) -> Sample:
        own = chunks[round_idx * CHUNKS_PER_ROUND : (round_idx + 1) * CHUNKS_PER_ROUND]
        samples = [read(chunk) for chunk in own]
        total = {key: sum(sample[key] for sample in samples) for key in samples[0]}
        if "wall_s" not in total:
            return total
        rows = sum(len(chunk) for chunk in own)
        return total | {"rows_per_s": rows / total["wall_s"], "hit_share": total["hit_rows"] / rows}

    return contender


def _limits(chunks: list[NDArray[np.int64]], rows_per_page: int, reference_reads: float) -> dict[str, float]:
    """What an endless cache would reach at the reference's page rate: it reads each page of new rows once."""
    seen = np.unique(np.concatenate(chunks[:WARM_CHUNKS]))
    rows, pages = 0, 0
    for chunk in chunks[WARM_CHUNKS:]:
        rows += len(chunk)
        pages += count_pages(np.setdiff1d(chunk, seen), rows_per_page)
        seen = np.union1d(seen, chunk)
    return {
        "endless_cache_over_no_cache": rows / pages,
        "endless_cache_over_16_way": reference_reads / pages,
    }

"""What the row cache's policy keeps and costs beside plain LRU and a 16-way cache of the same bytes; no disk.

The trace's ids go through the caches alone: the same lookups and insertions that the store makes for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engram._core import CachePolicy
from engram.bench.bench_setup import CHUNK_TOKENS, BenchSetup
from engram.bench.clocks import measure
from engram.bench.measure_cache import CACHE_TOKENS
from engram.bench.rounds import Figure, Sample
from engram.bench.text_trace import Kind

POLICIES = ("s3fifo", "lru", "set16")
STEP_TOKENS = 6
TURN_TOKENS = 2_048
# Half the cache's tokens, and twice.
SWEEPS_CHUNKS = (4, 16)
# The cache is full and its queues have settled before anything counts.
WARM_CHUNKS = 32
NUM_CHUNKS = 128

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    ids: Ids
    counted: bool


def measure_policy(setup: BenchSetup, kind: Kind, *, sweep_chunks: int = 0) -> Figure:
    """Rows that must be read with LRU over those with the store's policy, on one trace.

    `sweep_chunks`: decode steps of `kind`, and after each turn of them a prefill of so much new text of the
    other kind; the decode rows are counted. Without: prefill chunks alone, all counted.
    """
    requests = [*(_with_sweeps(setup, kind, sweep_chunks) if sweep_chunks else _prefill(setup, kind))]
    cache_bytes = CACHE_TOKENS * len(setup.header.columns) * setup.header.row_bytes
    samples = {name: _run(setup, name, cache_bytes, requests) for name in POLICIES}
    sweeps = f"decode beside prefill sweeps of {sweep_chunks * CHUNK_TOKENS} tokens"
    what = sweeps if sweep_chunks else "prefill chunks, files mixed"
    return Figure(
        name=f"{kind}, {what}: rows to read with plain LRU over rows to read with S3-FIFO",
        value=samples["lru"]["missed_unique_rows"] / samples["s3fifo"]["missed_unique_rows"],
        bar=1.0,
        at_most=False,
        samples=(samples,),
        notes={
            f"{name}_{key}": value
            for name, sample in samples.items()
            for key, value in sample.items()
            if key in ("hit_share", "cpu_us_per_row")
        },
    )


def _prefill(setup: BenchSetup, kind: Kind) -> Iterator[Request]:
    for idx in range(NUM_CHUNKS):
        yield Request(ids=setup.chunk(kind, idx, mixed=True), counted=idx >= WARM_CHUNKS)


def _with_sweeps(setup: BenchSetup, kind: Kind, sweep_chunks: int) -> Iterator[Request]:
    other: Kind = "code" if kind == "prose" else "prose"
    decode = setup.traces[kind].together
    for turn in range(NUM_CHUNKS // sweep_chunks):
        counted = turn * sweep_chunks >= WARM_CHUNKS
        for start in range(turn * TURN_TOKENS, (turn + 1) * TURN_TOKENS - STEP_TOKENS + 1, STEP_TOKENS):
            ids = np.ascontiguousarray(decode[start : start + STEP_TOKENS]).reshape(-1)
            yield Request(ids=ids, counted=counted)
        for idx in range(turn * sweep_chunks, (turn + 1) * sweep_chunks):
            yield Request(ids=setup.chunk(other, idx, mixed=True), counted=False)


def _run(setup: BenchSetup, name: str, cache_bytes: int, requests: list[Request]) -> Sample:
    header = setup.header
    policy = CachePolicy(
        name=name,
        weight_bytes=header.weight_bytes,
        scale_bytes=header.scale_bytes,
        cache_bytes=cache_bytes,
    )
    counts: list[tuple[int, int]] = []
    spent = measure(lambda: counts.extend(policy.step(request.ids) for request in requests))
    counted = [(request, count) for request, count in zip(requests, counts, strict=True) if request.counted]
    rows = sum(request.ids.size for request, _ in counted)
    return {
        "counted_rows": float(rows),
        "hit_share": sum(hits for _, (hits, _) in counted) / rows,
        "missed_unique_rows": float(sum(missed for _, (_, missed) in counted)),
        # All requests: lookups, copies of hits, insertions and evictions.
        "cpu_us_per_row": spent.cpu_s / sum(request.ids.size for request in requests) * 1e6,
    }

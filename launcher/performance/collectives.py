"""Time of one all-reduce: measured latency of small messages, bus bandwidth of large ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from launcher.performance.constants import constant, read_data

# Number of ranks -> the constant with the bus bandwidth of large messages.
_BUS = {2: "busbw_pair_gb_s", 3: "busbw_triangle_gb_s", 4: "busbw_four_gb_s"}
# One-shot RDMA takes messages up to its buffer; NCCL takes the larger ones.
_ABOVE_BUFFER = {"one_shot_four": "nccl_switch", "one_shot_pair": "nccl_pair"}


@cache
def table(kind: str) -> tuple[tuple[float, float], ...]:
    """Measured points of latencies.json: bytes and us of an all-reduce, or rows and ms."""
    entry = read_data("latencies.json")[kind]
    assert isinstance(entry, dict)
    return tuple((float(x), float(y)) for x, y in entry["points"])


def small_allreduce_s(kind: str, num_bytes: float) -> float:
    """Straight lines between measured sizes; flat below the first, the last slope beyond the last."""
    if kind in _ABOVE_BUFFER and num_bytes > constant("one_shot_buffer_bytes"):
        kind = _ABOVE_BUFFER[kind]
    return 1e-6 * interpolate(table(kind), num_bytes)


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    if x <= points[0][0]:
        return points[0][1]
    ends = next(((a, b) for a, b in pairwise(points) if x <= b[0]), (points[-2], points[-1]))
    (x0, y0), (x1, y1) = ends
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def large_allreduce_s(num_ranks: int, num_bytes: float) -> float:
    """Ring all-reduce: 2 (n - 1) / n of the message crosses each rank's port."""
    if num_ranks == 1:
        return 0.0
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / (constant(_BUS[num_ranks]) * 1e9)


def gather_s(num_ranks: int, num_bytes: float) -> float:
    """All-gather of `num_bytes` in all: (n - 1) / n of them come in."""
    if num_ranks == 1:
        return 0.0
    return (num_ranks - 1) / num_ranks * num_bytes / (constant(_BUS[num_ranks]) * 1e9)

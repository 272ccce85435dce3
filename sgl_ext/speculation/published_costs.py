"""Cost tables from published step times, for simulations where nothing was measured.

A plain step's time is not published for any of them; it is the line through the published rows, continued to
one row a request.
"""

from __future__ import annotations

from itertools import pairwise

from sgl_ext.speculation.cost_table import CostTable

BATCHES = (1, 2, 4, 8, 16)
BLOCK = 5


def tp4_profile() -> CostTable:
    """Two published profiles of one TP4 server: a step of 6, 12, 24, 48, 96 and 144 verified rows takes
    49.0, 67.1, 98.3, 155.7, 216.4 and 279.1 ms. Draft: 3 of 43 layers, and its head."""
    points = ((1, 34.0), (6, 49.0), (12, 67.1), (24, 98.3), (48, 155.7), (96, 216.4), (144, 279.1))
    return _by_rows(points, draft_ms=(2.5, 2.7, 3.0, 3.5, 4.5))


def tp4_tuned() -> CostTable:
    """TP4 as tuned later: 32 ms on prose and 37.6 ms on code at one stream, about 2 ms a verified row; the
    growth with the batch is the profile's."""
    points = ((1, 25.5), (6, 35.5), (12, 46.0), (24, 67.0), (48, 105.0), (96, 150.0))
    return _by_rows(points, draft_ms=(2.2, 2.4, 2.7, 3.2, 4.0))


def tp3() -> CostTable:
    """TP3: 59.0 ms on prose and 69.7 ms on code at one stream, about 3.5 ms a verified row."""
    points = ((1, 46.5), (6, 65.5), (12, 89.0), (24, 130.0), (48, 205.0), (96, 290.0))
    return _by_rows(points, draft_ms=(3.8, 4.0, 4.4, 5.2, 6.6))


def steep() -> CostTable:
    """A machine on which rows are dear, as published for one stream elsewhere: 1+1 rows 37 ms, 1+4 rows 64
    ms, and 2.2 plain steps for a full verify."""
    points = ((1, 28.0), (2, 35.5), (5, 62.0), (6, 71.0), (12, 125.0), (24, 232.0), (48, 446.0), (96, 874.0))
    return _by_rows(points, draft_ms=(1.5, 1.6, 1.8, 2.2, 3.0))


def _by_rows(points: tuple[tuple[int, float], ...], *, draft_ms: tuple[float, ...]) -> CostTable:
    return CostTable(
        batches=BATCHES,
        verify_ns=tuple(
            tuple(_row_ns(points, batch * (1 + width)) for width in range(BLOCK + 1)) for batch in BATCHES
        ),
        draft_ns=tuple(round(value * 1e6) for value in draft_ms),
    )


def _row_ns(points: tuple[tuple[int, float], ...], rows: int) -> int:
    for (low, low_ms), (high, high_ms) in pairwise(points):
        if rows <= high:
            return round((low_ms + (high_ms - low_ms) * (rows - low) / (high - low)) * 1e6)
    raise ValueError(rows)

"""Bars over bytes with rate and time left, for a terminal; None where there is none and lines are printed."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


def byte_bars() -> Progress | None:
    """On stderr: stdout stays for the result."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        return None
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def pace(done_bytes: int, total_bytes: int, rate: float) -> str:
    """`40 %, 1.00 GiB of 2.50 GiB, 500 MB/s, 3 s left`; no rate: without the last two."""
    text = f"{100 * done_bytes // max(1, total_bytes)} %, {gib(done_bytes)} of {gib(total_bytes)}"
    if rate > 0:
        text += f", {rate / 1e6:.0f} MB/s, {(total_bytes - done_bytes) / rate:.0f} s left"
    return text

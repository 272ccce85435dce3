"""Pure: which nodes have no room for what is to come."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import PreflightRefused
from launcher.weights.file_list import Stock

# Manifest, directory entries and the file system's own growth.
RESERVE_BYTES = 64 << 20


def refuse_full_disks(stocks: Mapping[str, Stock]) -> None:
    """Raises PreflightRefused that names every node without room, with both numbers."""
    short = [
        f"{node} needs {stock.needed_bytes} bytes ({_gib(stock.needed_bytes)}), got {stock.free_bytes} free "
        f"({_gib(stock.free_bytes)}) in {stock.directory}"
        for node, stock in stocks.items()
        if stock.num_missing and stock.needed_bytes + RESERVE_BYTES > stock.free_bytes
    ]
    if short:
        raise PreflightRefused(
            f"Every node must have room for its files before anything is copied: {'; '.join(short)}.",
            hint="make room, set paths.models to a larger disk, or leave parts out: --leave-out engram",
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"

"""Progress of several nodes: a bar each with rate and time left on a terminal, lines in a file."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from launcher.weights.follow import Progress as NodeProgress

_LINE_EVERY_S = 5.0


class NodesProgress:
    """Call it with each report, from any thread; all goes to stderr. Phases without bytes show nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._first: dict[tuple[str, str], tuple[float, int]] = {}
        self._last_line_s: dict[str, float] = {}
        console = Console(file=sys.stderr)
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=console,
            )

    def __call__(self, seen: NodeProgress) -> None:
        if not seen.total_bytes:
            return
        with self._lock:
            if self._bars is not None:
                self._show_bar(self._bars, seen)
            else:
                self._show_line(seen, time.monotonic())

    def _show_bar(self, bars: Progress, seen: NodeProgress) -> None:
        key = (seen.node, seen.phase)
        if key not in self._tasks:
            self._tasks[key] = bars.add_task(f"{seen.node} {seen.phase}", total=seen.total_bytes)
        bars.update(self._tasks[key], completed=seen.done_bytes, total=seen.total_bytes)

    def _show_line(self, seen: NodeProgress, now: float) -> None:
        started, at_start = self._first.setdefault((seen.node, seen.phase), (now, seen.done_bytes))
        is_end = seen.done_bytes >= seen.total_bytes
        if now - self._last_line_s.get(seen.node, started) < _LINE_EVERY_S and not is_end:
            return
        self._last_line_s[seen.node] = now
        typer.echo(line(seen, rate=(seen.done_bytes - at_start) / max(1e-9, now - started)), err=True)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()


def line(seen: NodeProgress, *, rate: float) -> str:
    percent = 100 * seen.done_bytes // seen.total_bytes
    text = f"{seen.node}: {seen.phase} {percent} %, {gib(seen.done_bytes)} of {gib(seen.total_bytes)}"
    if rate > 0:
        left_s = (seen.total_bytes - seen.done_bytes) / rate
        text += f", {rate / 1e6:.0f} MB/s, {left_s:.0f} s left"
    return text


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"

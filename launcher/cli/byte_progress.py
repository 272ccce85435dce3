"""Progress over a known number of bytes: a bar with rate and ETA on a terminal, lines in a file."""

from __future__ import annotations

import sys
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

_LINE_EVERY_S = 10.0


class ByteProgress:
    """Everything goes to stderr. Bytes done by an earlier run count for the bar, not for the rate."""

    def __init__(self, title: str) -> None:
        self._title = title
        console = Console(file=sys.stderr)
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
        self._task: TaskID | None = None
        self._total_bytes = self._done_bytes = self._resumed_bytes = 0
        self._started = self._last_line = time.monotonic()

    def start(self, *, total_bytes: int, done_bytes: int) -> None:
        self._total_bytes, self._done_bytes, self._resumed_bytes = total_bytes, done_bytes, done_bytes
        self._started = self._last_line = time.monotonic()
        if self._bar is not None:
            self._task = self._bar.add_task(self._title, total=total_bytes, completed=done_bytes)
        elif done_bytes:
            typer.echo(f"{self._title}: {_gib(done_bytes)} were done before", err=True)

    def advance(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, num_bytes)
            return
        now = time.monotonic()
        if now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            typer.echo(self.line(now), err=True)

    def line(self, now: float) -> str:
        rate = max(1.0, (self._done_bytes - self._resumed_bytes) / max(1e-9, now - self._started))
        left_s = (self._total_bytes - self._done_bytes) / rate
        percent = 100 * self._done_bytes // max(1, self._total_bytes)
        return (
            f"{self._title}: {percent} %, {_gib(self._done_bytes)} of {_gib(self._total_bytes)}, "
            f"{rate / 1e6:.0f} MB/s, {left_s:.0f} s left"
        )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"

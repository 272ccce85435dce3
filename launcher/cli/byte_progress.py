"""Progress over a known number of bytes: a bar with rate and ETA on a terminal, lines in a file."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import typer
from rich.progress import TaskID

from launcher.cli.byte_bars import byte_bars, gib, pace

_LINE_EVERY_S = 10.0


class ByteProgress:
    """Everything goes to stderr. Bytes done by an earlier run count for the bar, not for the rate."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar = byte_bars()
        self._task: TaskID | None = None
        self._total_bytes = self._done_bytes = self._resumed_bytes = 0
        self._started = self._last_line = time.monotonic()

    def start(self, *, total_bytes: int, done_bytes: int) -> None:
        self._total_bytes, self._done_bytes, self._resumed_bytes = total_bytes, done_bytes, done_bytes
        self._started = self._last_line = time.monotonic()
        if self._bar is not None:
            self._task = self._bar.add_task(self._title, total=total_bytes, completed=done_bytes)
        elif done_bytes:
            typer.echo(f"{self._title}: {gib(done_bytes)} were done before", err=True)

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
        return f"{self._title}: {pace(self._done_bytes, self._total_bytes, rate)}"

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

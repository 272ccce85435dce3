"""Progress of several nodes: a bar each with rate and time left on a terminal, lines in a file."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import typer
from rich.progress import Progress, TaskID

from launcher.cli.byte_bars import byte_bars, pace
from launcher.weights.follow import Progress as NodeProgress

_LINE_EVERY_S = 5.0


class NodesProgress:
    """Call it with each report, from any thread; all goes to stderr. Phases without bytes show nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._first: dict[tuple[str, str], tuple[float, int]] = {}
        self._last_line_s: dict[str, float] = {}
        self._bars = byte_bars()

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
    return f"{seen.node}: {seen.phase} {pace(seen.done_bytes, seen.total_bytes, rate)}"

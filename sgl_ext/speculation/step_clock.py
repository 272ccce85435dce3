"""How long a step's draft and verify took: by the host's clock on the CPU, by events on a GPU.

For the metrics only; no decision looks at it, since ranks read different clocks.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class StepClock:
    """Marks of one step, in order: the start, the draft's end, the step's end. Reading waits for nothing: a
    step is read once its result is on the host; restart() then makes it the clock of another."""

    __slots__ = ("_events", "_is_cuda", "_marks")

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3 if self._is_cuda else 0)]
        self._marks: list[Any] = []

    def restart(self) -> None:
        self._marks.clear()

    def mark(self) -> None:
        if not self._is_cuda:
            self._marks.append(time.perf_counter())
            return
        event = self._events[len(self._marks)]
        event.record()
        self._marks.append(event)

    def skip_draft(self) -> None:
        """There is no draft: it ends where the step starts."""
        self._marks.append(self._marks[-1])

    def seconds(self) -> tuple[float, float]:
        """Draft and verify."""
        start, drafted, end = self._marks
        if self._is_cuda:
            end.synchronize()
            draft_ms = 0.0 if drafted is start else start.elapsed_time(drafted)
            return draft_ms / 1e3, drafted.elapsed_time(end) / 1e3
        return drafted - start, end - drafted

"""How long a step's draft and verify took: by the host's clock on the CPU, by events on a GPU.

For the metrics only; no decision looks at it, since ranks read different clocks.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class StepClock:
    """Marks of one step, in order: the start, the draft's end, the step's end. Reading waits for nothing: a
    step is read once its result is on the host."""

    __slots__ = ("_is_cuda", "_marks")

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        if not self._is_cuda:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def seconds(self) -> tuple[float, float]:
        """Draft and verify."""
        start, drafted, end = self._marks
        if self._is_cuda:
            end.synchronize()
            return start.elapsed_time(drafted) / 1e3, drafted.elapsed_time(end) / 1e3
        return drafted - start, end - drafted

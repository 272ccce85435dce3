"""Alarm: drafted steps bring fewer tokens than they cost, and it stays so."""

from __future__ import annotations

_MEMORY = 1 / 128  # weight of the newest step: looks back over some 128 drafted steps
_MIN_STEPS = 128
# Below 0.97 of break-even it comes on, above break-even it goes off: a figure that hovers does not flap.
_ON_BELOW = 0.97
_OFF_ABOVE = 1.0


class BreakEvenAlarm:
    """Averages over drafted steps: tokens a step and request, and what the step cost in plain steps."""

    def __init__(self) -> None:
        self.tokens_per_step = 0.0
        self.break_even = 0.0
        self.is_on = False
        self._num_steps = 0

    def observe(self, *, tokens_per_step: float, break_even: float) -> None:
        """One drafted step. break_even: its cost over that of a plain step of the same batch."""
        weight = max(_MEMORY, 1 / (self._num_steps + 1))
        self._num_steps += 1
        self.tokens_per_step += (tokens_per_step - self.tokens_per_step) * weight
        self.break_even += (break_even - self.break_even) * weight
        if self._num_steps < _MIN_STEPS:
            return
        bound = _OFF_ABOVE if self.is_on else _ON_BELOW
        self.is_on = self.tokens_per_step < bound * self.break_even

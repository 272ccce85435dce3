"""What the draft's confidence is worth: measured, not believed.

Confidence comes in eight levels. For each position and level the server counts how often the token was
accepted; a request's own ratio to that table corrects it. Whether the result predicts better than the
request's plain history is decided by the Brier score of both on the same trials: confidence that says
nothing loses, and one that says the opposite of the truth is simply read the other way round.
"""

from __future__ import annotations

from sgl_ext.speculation.fixed_point import ONE
from sgl_ext.speculation.prediction_score import PredictionScore

NUM_LEVELS = 8
_MEMORY_SHIFT = 9  # 512 trials of a cell: some minutes of one stream
_START_WEIGHT = 4
# Confidence must predict 6 % better than history: choosing by noise costs more than it brings.
_MARGIN_SHIFT = 4


class ConfidenceTable:
    """Acceptance by position and confidence level, of all requests, and the score of the two predictions."""

    def __init__(self, block: int, chance: int) -> None:
        self._trials = [[_START_WEIGHT * ONE] * NUM_LEVELS for _ in range(block)]
        self._successes = [[_START_WEIGHT * chance] * NUM_LEVELS for _ in range(block)]
        self._score = PredictionScore(_MARGIN_SHIFT)

    @property
    def is_useful(self) -> bool:
        return self._score.challenger_leads

    def chances(self, levels: tuple[int, ...], factor: int) -> tuple[int, ...]:
        """Chance of each position at these levels, times a request's factor (ONE = as the table says)."""
        return tuple(
            min(ONE, (self._successes[position][level] * factor) // self._trials[position][level])
            for position, level in enumerate(levels)
        )

    def observe(self, position: int, level: int, outcome: bool, history: int, predicted: int) -> None:
        """One trial and what both predictions had said."""
        self._score.observe(outcome, champion=history, challenger=predicted)
        value = ONE if outcome else 0
        trials, successes = self._trials[position], self._successes[position]
        trials[level] += ONE - (trials[level] >> _MEMORY_SHIFT)
        successes[level] += value - (successes[level] >> _MEMORY_SHIFT)


class ConfidenceFactor:
    """How a request's acceptance relates to the table: accepted over predicted, both with a start weight."""

    __slots__ = ("_accepted", "_predicted")

    def __init__(self) -> None:
        self._accepted = 4 * ONE
        self._predicted = 4 * ONE

    def value(self) -> int:
        return min(2 * ONE, (self._accepted << 16) // max(1, self._predicted))

    def observe(self, outcome: bool, predicted: int) -> None:
        self._accepted += (ONE if outcome else 0) - (self._accepted >> 6)
        self._predicted += predicted - (self._predicted >> 6)


def confidence_level(confidence: int) -> int:
    """Level of a confidence given in 1/ONE (0 to ONE)."""
    return min(NUM_LEVELS - 1, confidence * NUM_LEVELS >> 16)

"""Which of two predictions is better: the Brier scores of both on the same trials, the older ones fading."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_ext.speculation.fixed_point import ONE

MEMORY_SHIFT = 8  # looks back over 256 trials
_MIN_TRIALS = 32


class PredictionScore:
    """Compares a challenger with a champion;
    the challenger must lead by 1/2^margin_shift of the champion's score. champion, challenger: squared
    errors, fading; the smaller is the better."""

    __slots__ = ("_margin_shift", "challenger", "champion", "num_trials")

    def __init__(self, margin_shift: int) -> None:
        self._margin_shift = margin_shift
        self.champion = 0
        self.challenger = 0
        self.num_trials = 0

    @property
    def challenger_leads(self) -> bool:
        lead = self.champion - self.challenger
        return self.num_trials >= _MIN_TRIALS and lead > self.champion >> self._margin_shift

    def observe(self, outcome: bool, *, champion: int, challenger: int) -> None:
        value = ONE if outcome else 0
        self.champion += ((champion - value) ** 2 >> 16) - (self.champion >> MEMORY_SHIFT)
        self.challenger += ((challenger - value) ** 2 >> 16) - (self.challenger >> MEMORY_SHIFT)
        self.num_trials += 1

    def observe_run(self, accepted: int, *, champions: Sequence[int], challengers: Sequence[int]) -> None:
        """As observe() of each tested token of a step, in one pass. challengers: one for each token tested,
        of which the first `accepted` were accepted and a further one, if there is one, was not."""
        champion, challenger = self.champion, self.challenger
        for position, chance in enumerate(challengers):
            value = ONE if position < accepted else 0
            error = champions[position] - value
            champion += (error * error >> 16) - (champion >> MEMORY_SHIFT)
            error = chance - value
            challenger += (error * error >> 16) - (challenger >> MEMORY_SHIFT)
        self.champion, self.challenger = champion, challenger
        self.num_trials += len(challengers)

"""What is known about a draft's acceptance:
chance per position, given that the tokens before were accepted."""

from __future__ import annotations

from sgl_ext.speculation.fixed_point import ONE

# Published conditional chances lie between 0.55 and 0.9 (V4-Flash 0.58 to 0.77, prose; 0.93 and then 0.77,
# good prompts). Only the first requests after a start use this; later ones start from what requests before
# them did.
DEFAULT_CHANCE = ONE * 7 // 10
# An untested position comes to look a little better than the one before it (published chances do rise after
# the first), so that an unlucky start is tried again: fast while few trials speak against it (1/64 a step
# with 2, 1/2048 with 64), and those fade. Where the position really is worse, about one step in thirteen
# tries it.
_DRIFT_SHIFT = 7
_DRIFT_TRIALS = 4
_STALE_SHIFT = 8
_LEAST_TRIALS = 2 * ONE
# Two of n trials: where drafting gains 5 %, its figures look like a loss of that much in one of 60 (n = 35).
_HOPE_TRIALS = 2


class AcceptanceEstimate:
    """Weighted counts of trials and successes by position, the older ones fading with every new trial.

    memory_shift: a trial's weight falls by 1/2^memory_shift with each later trial of its position.
    """

    __slots__ = ("_memory_shift", "_successes", "_trials")

    def __init__(self, chances: tuple[int, ...], *, weight: int, memory_shift: int) -> None:
        self._memory_shift = memory_shift
        self._trials = [weight * ONE] * len(chances)
        self._successes = [weight * chance for chance in chances]

    def chances(self) -> tuple[int, ...]:
        """Chance of each position times ONE, between 0 and ONE."""
        return tuple(
            (success << 16) // trial for success, trial in zip(self._successes, self._trials, strict=True)
        )

    def weights(self) -> tuple[int, ...]:
        """Trials behind each position, times ONE."""
        return tuple(self._trials)

    def hope(self) -> int:
        """What the first position's chance may well be: more, the fewer trials speak against it."""
        chance = (self._successes[0] << 16) // self._trials[0]
        return min(ONE, chance + _HOPE_TRIALS * ONE * ONE // self._trials[0])

    def observe(self, width: int, accepted: int) -> None:
        """A step verified width draft tokens and accepted the first `accepted`; the rest is unknown."""
        for position in range(min(accepted + 1, width)):
            self._add(position, ONE if position < accepted else 0)

    def assume(self, position: int, chance: int) -> None:
        """The position was not tested because its confidence spoke against it: its chance stands in for the
        outcome, else only the promising cases would be counted."""
        self._add(position, chance)

    def drift(self, width: int) -> None:
        """All of a width was accepted, so the next position could have been tested, but was not."""
        if not 0 < width < len(self._trials):
            return
        trials = self._trials[width]
        chance = (self._successes[width - 1] << 16) // self._trials[width - 1]
        chance += (ONE - chance) >> 2
        missing = max(0, (chance * trials >> 16) - self._successes[width])
        self._successes[width] += missing * _DRIFT_TRIALS * ONE // trials >> _DRIFT_SHIFT
        if trials > _LEAST_TRIALS:
            self._trials[width] -= trials >> _STALE_SHIFT
            self._successes[width] -= self._successes[width] >> _STALE_SHIFT

    def forget(self, weight: int) -> None:
        """Keeps the chances, but lets them weigh no more than `weight` trials."""
        for position, trials in enumerate(self._trials):
            if trials > weight * ONE:
                self._successes[position] = self._successes[position] * weight * ONE // trials
                self._trials[position] = weight * ONE

    def lower(self, position: int, chance: int) -> None:
        """Lets a position's chance be no more than `chance`."""
        limit = chance * self._trials[position] >> 16
        self._successes[position] = min(self._successes[position], limit)

    def _add(self, position: int, outcome: int) -> None:
        self._trials[position] += ONE - (self._trials[position] >> self._memory_shift)
        self._successes[position] += outcome - (self._successes[position] >> self._memory_shift)

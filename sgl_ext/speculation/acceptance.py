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
    """Weighted counts of trials and successes by position (times ONE), the older ones fading with every new
    trial.

    memory_shift: a trial's weight falls by 1/2^memory_shift with each later trial of its position.
    """

    __slots__ = ("memory_shift", "successes", "trials")

    def __init__(self, chances: tuple[int, ...], *, weight: int, memory_shift: int) -> None:
        self.memory_shift = memory_shift
        self.trials = [weight * ONE] * len(chances)
        self.successes = [weight * chance for chance in chances]

    def chances(self) -> tuple[int, ...]:
        """Chance of each position times ONE, between 0 and ONE."""
        return tuple([(own << 16) // all_ for own, all_ in zip(self.successes, self.trials, strict=True)])

    def first_chances(self, num_positions: int) -> list[int]:
        trials = self.trials
        return [(own << 16) // trials[idx] for idx, own in enumerate(self.successes[:num_positions])]

    def chance(self, position: int) -> int:
        return (self.successes[position] << 16) // self.trials[position]

    def survival(self) -> tuple[int, ...]:
        """fixed_point.survival_of(chances())."""
        survival, product = [], ONE
        for own, all_ in zip(self.successes, self.trials, strict=True):
            product = product * ((own << 16) // all_) >> 16
            survival.append(product)
        return tuple(survival)

    def weight(self, position: int) -> int:
        """Trials behind a position, times ONE."""
        return self.trials[position]

    def hope(self) -> int:
        """What the first position's chance may well be: more, the fewer trials speak against it."""
        chance = (self.successes[0] << 16) // self.trials[0]
        return min(ONE, chance + _HOPE_TRIALS * ONE * ONE // self.trials[0])

    def observe(self, width: int, accepted: int) -> None:
        """A step verified width draft tokens and accepted the first `accepted`; the rest is unknown."""
        trials, successes, shift = self.trials, self.successes, self.memory_shift
        for position in range(accepted + 1 if accepted < width else width):
            weight, count = trials[position], successes[position]
            trials[position] = weight + ONE - (weight >> shift)
            successes[position] = count - (count >> shift) + (ONE if position < accepted else 0)

    def assume(self, position: int, chance: int) -> None:
        """The position was not tested because its confidence spoke against it: its chance stands in for the
        outcome, else only the promising cases would be counted."""
        self._add(position, chance)

    def drift(self, width: int) -> None:
        """All of a width was accepted, so the next position could have been tested, but was not."""
        if not 0 < width < len(self.trials):
            return
        trials = self.trials[width]
        chance = (self.successes[width - 1] << 16) // self.trials[width - 1]
        chance += (ONE - chance) >> 2
        missing = max(0, (chance * trials >> 16) - self.successes[width])
        self.successes[width] += missing * _DRIFT_TRIALS * ONE // trials >> _DRIFT_SHIFT
        if trials > _LEAST_TRIALS:
            self.trials[width] -= trials >> _STALE_SHIFT
            self.successes[width] -= self.successes[width] >> _STALE_SHIFT

    def forget(self, weight: int) -> None:
        """Keeps the chances, but lets them weigh no more than `weight` trials."""
        for position, trials in enumerate(self.trials):
            if trials > weight * ONE:
                self.successes[position] = self.successes[position] * weight * ONE // trials
                self.trials[position] = weight * ONE

    def lower(self, position: int, chance: int) -> None:
        """Lets a position's chance be no more than `chance`."""
        limit = chance * self.trials[position] >> 16
        self.successes[position] = min(self.successes[position], limit)

    def _add(self, position: int, outcome: int) -> None:
        self.trials[position] += ONE - (self.trials[position] >> self.memory_shift)
        self.successes[position] += outcome - (self.successes[position] >> self.memory_shift)

"""A and B in turn, so that a disk whose speed drifts treats both alike; medians of ratios."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

NUM_ROUNDS = 5

Sample = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report: a ratio or an amount against its bar."""

    name: str
    value: float
    bar: float
    at_most: bool
    """True when the value must not exceed the bar, else it must reach it."""
    unit: str = ""
    samples: tuple[dict[str, Sample], ...] = ()
    notes: dict[str, float] | None = None

    @property
    def reached(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def alternate(
    contenders: dict[str, Callable[[int], Sample]], num_rounds: int = NUM_ROUNDS, *, rotate: bool = False
) -> tuple[dict[str, Sample], ...]:
    """Per round, each contender's sample; every contender gets the round's number to choose its input.

    `rotate`: each round begins with the next contender, so that a disk that warms up favours nobody.
    """
    rounds = []
    for round_idx in range(num_rounds):
        first = round_idx % len(contenders) if rotate else 0
        names = [*contenders][first:] + [*contenders][:first]
        rounds.append({name: contenders[name](round_idx) for name in names})
    return tuple(rounds)


def median_ratio(
    rounds: tuple[dict[str, Sample], ...], over: tuple[str, str], under: tuple[str, str]
) -> float:
    """Median over the rounds of round[over contender][key] / round[under contender][key]."""
    return median(round_[over[0]][over[1]] / round_[under[0]][under[1]] for round_ in rounds)


def median_of(rounds: tuple[dict[str, Sample], ...], contender: str, key: str) -> float:
    return median(round_[contender][key] for round_ in rounds)

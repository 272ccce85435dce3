"""The best widths for a step, from each request's chances and the cost of the step. Pure.

The measure is tokens of the whole batch over the time of the step. Ratios are compared by
cross-multiplication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.fixed_point import expected_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """widths: draft tokens to verify, one a request.
    tokens: expected in all, times ONE. cost_ns: of the step."""

    widths: tuple[int, ...]
    tokens: int
    cost_ns: int

    @property
    def total(self) -> int:
        return sum(self.widths)

    def beats(self, other: Choice) -> bool:
        """More tokens in a time."""
        return self.tokens * other.cost_ns > other.tokens * self.cost_ns

    def gain(self, rate: Choice) -> int:
        """Tokens beyond what `rate` would bring in this step's time, times rate's time."""
        return self.tokens * rate.cost_ns - rate.tokens * self.cost_ns


Survivals = Sequence[tuple[int, ...]]


def equal_width_choices(
    table: CostTable, survivals: Survivals, caps: Sequence[int], floor: int
) -> Iterable[Choice]:
    """One choice for each graph width from floor to the block, draft included.
    A cap below it saves nothing."""
    batch = len(caps)
    for width in range(floor, table.block + 1):
        widths = tuple(min(width, cap) for cap in caps)
        tokens = sum(expected_tokens(chance, own) for chance, own in zip(survivals, widths, strict=True))
        yield Choice(widths=widths, tokens=tokens, cost_ns=table.step_ns(batch, width))


def ragged_choices(
    table: CostTable, survivals: Survivals, caps: Sequence[int], floors: Sequence[int]
) -> Iterable[Choice]:
    """One choice for each number of verified tokens: the likeliest first, earlier requests first where equal.

    Survival never rises with the position, so the likeliest tokens are a prefix of each request's draft.
    """
    batch = len(caps)
    wanted = sorted(
        (-chance[position], idx, position)
        for idx, chance in enumerate(survivals)
        for position in range(floors[idx], caps[idx])
    )
    widths = list(floors)
    tokens = sum(expected_tokens(chance, own) for chance, own in zip(survivals, widths, strict=True))
    num_verified = sum(widths)
    yield Choice(widths=tuple(widths), tokens=tokens, cost_ns=table.ragged_step_ns(batch, num_verified))
    for negative_chance, idx, position in wanted:
        widths[idx] = position + 1
        tokens -= negative_chance
        num_verified += 1
        yield Choice(widths=tuple(widths), tokens=tokens, cost_ns=table.ragged_step_ns(batch, num_verified))


def best_rate(choices: Iterable[Choice], start: Choice) -> Choice:
    """The choice with the most tokens in a time; `start` unless one is strictly better."""
    best = start
    for choice in choices:
        if choice.beats(best):
            best = choice
    return best


def best_gain(choices: Iterable[Choice], rate: Choice) -> Choice:
    """The choice that gains most over going on at `rate`:
    what a step is worth whose draft is already known."""
    found = None
    for choice in choices:
        if found is None or choice.gain(rate) > found.gain(rate):
            found = choice
    assert found is not None
    return found

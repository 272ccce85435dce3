"""The best widths for a step, from each request's chances and the cost of the step. Pure.

The measure is tokens of the whole batch over the time of the step. Ratios are compared by
cross-multiplication. A step of a batch has up to batch * block + 1 choices, and all of them are looked at
before every step, on the host, while the GPU may have nothing to do: so they are kept as two lists of
numbers, and only the one that is taken gets its widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.fixed_point import ONE


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


Survivals = Sequence[Sequence[int]]


class Choices:
    """Every choice of a step, from the cheapest on: tokens[k] expected in all (times ONE), costs[k] in ns,
    which never falls (CostTable refuses such a table), totals[k] draft tokens."""

    __slots__ = ("costs", "tokens", "totals")

    def __init__(self, tokens: Sequence[int], costs: Sequence[int], totals: Sequence[int]) -> None:
        self.tokens = tokens
        self.costs = costs
        self.totals = totals

    def widths(self, idx: int) -> tuple[int, ...]:
        raise NotImplementedError

    def choice(self, idx: int) -> Choice:
        return Choice(widths=self.widths(idx), tokens=self.tokens[idx], cost_ns=self.costs[idx])

    def best_rate(self, start: Choice, *, max_cost_ns: int | None = None, total: int | None = None) -> Choice:
        """The choice with the most tokens in a time, of those that cost at most max_cost_ns and (where given)
        verify `total` draft tokens; `start` unless one is strictly better."""
        best_tokens, best_cost, best = start.tokens, start.cost_ns, -1
        for idx, (tokens, cost) in enumerate(zip(self.tokens, self.costs, strict=False)):
            if max_cost_ns is not None and cost > max_cost_ns:
                break
            if tokens * best_cost > best_tokens * cost and (total is None or self.totals[idx] == total):
                best_tokens, best_cost, best = tokens, cost, idx
        return start if best < 0 else self.choice(best)

    def best_gain(self, rate: Choice, *, max_cost_ns: int) -> Choice:
        """The choice that gains most over going on at `rate`: what a step is worth whose draft is already
        known. Gain: tokens beyond what `rate` would bring in this step's time, times rate's time."""
        best, best_gain = -1, 0
        for idx, (tokens, cost) in enumerate(zip(self.tokens, self.costs, strict=False)):
            if cost > max_cost_ns:
                break
            gain = tokens * rate.cost_ns - rate.tokens * cost
            if best < 0 or gain > best_gain:
                best, best_gain = idx, gain
        assert best >= 0, "the step was planned, so its smallest choice is paid for"
        return self.choice(best)


class EqualChoices(Choices):
    """One choice for each graph width from the largest floor to the block. A cap below it saves nothing."""

    __slots__ = ("_caps", "_first")

    def __init__(self, table: CostTable, survivals: Survivals, caps: Sequence[int], floor: int) -> None:
        batch = len(caps)
        graph_widths = range(floor, table.block + 1)
        tokens = batch * ONE + sum(
            sum(survival[: min(cap, floor)]) for survival, cap in zip(survivals, caps, strict=True)
        )
        total = sum(min(cap, floor) for cap in caps)
        all_tokens, totals = [tokens], [total]
        for width in graph_widths[1:]:
            for survival, cap in zip(survivals, caps, strict=True):
                if cap >= width:
                    tokens += survival[width - 1]
                    total += 1
            all_tokens.append(tokens)
            totals.append(total)
        super().__init__(all_tokens, [table.step_ns(batch, width) for width in graph_widths], totals)
        self._caps = caps
        self._first = floor

    def widths(self, idx: int) -> tuple[int, ...]:
        width = self._first + idx
        return tuple([min(width, cap) for cap in self._caps])


class RaggedChoices(Choices):
    """One choice for each number of verified tokens: the likeliest first, earlier requests first where equal.

    Survival never rises with the position, so the likeliest tokens are a prefix of each request's draft.
    costs: of 0 to batch * block draft tokens, CostTable.ragged_costs.
    """

    __slots__ = ("_floors", "_order")

    def __init__(
        self, costs: Sequence[int], survivals: Survivals, caps: Sequence[int], floors: Sequence[int]
    ) -> None:
        # A token as one number, so that sorting compares numbers: how unlikely it is, its request, its place.
        order = [
            (ONE - survival[position]) << 24 | idx << 8 | position
            for idx, survival in enumerate(survivals)
            for position in range(floors[idx], caps[idx])
        ]
        order.sort()
        start = len(caps) * ONE
        first = sum(floors)
        if first:
            start += sum(
                sum(survival[:floor]) for survival, floor in zip(survivals, floors, strict=True) if floor
            )
        tokens = list(accumulate([ONE - (token >> 24) for token in order], initial=start))
        super().__init__(tokens, costs[first:] if first else costs, range(first, first + len(tokens)))
        self._floors = floors
        self._order = order

    def widths(self, idx: int) -> tuple[int, ...]:
        widths = list(self._floors)
        for token in self._order[:idx]:
            widths[token >> 8 & 0xFFFF] += 1
        return tuple(widths)

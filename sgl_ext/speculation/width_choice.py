"""The best widths for a step, from each request's chances and the cost of the step. Pure.

The measure is tokens of the whole batch over the time of the step. Ratios are compared by
cross-multiplication. A step of a batch has up to batch * block + 1 choices, and all of them are looked at
before every step, on the host, while the GPU may have nothing to do: so they are kept as two lists of
numbers, and only the one that is taken gets its widths.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import truediv

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
        tokens, costs = self.tokens, self.costs
        first, end = 0, len(tokens)
        if max_cost_ns is not None:
            end = bisect_right(costs, max_cost_ns, 0, end)
        if total is not None:
            first, end = bisect_left(self.totals, total), min(end, bisect_right(self.totals, total))
        if first >= end:
            return start
        # Division rounds to the nearest, so that a larger rate is never less in floating point: the best is
        # among those that are largest there, mostly one, and is found among them exactly.
        rates = list(map(truediv, tokens[first:end], costs[first:end]))
        largest = max(rates)
        best = rates.index(largest)
        for idx in range(best + 1, len(rates)) if rates.count(largest) > 1 else ():
            if rates[idx] == largest:
                is_more = (
                    tokens[first + idx] * costs[first + best] > tokens[first + best] * costs[first + idx]
                )
                best = idx if is_more else best
        best += first
        is_better = tokens[best] * start.cost_ns > start.tokens * costs[best]
        return self.choice(best) if is_better else start

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

    __slots__ = ("_caps", "_floors", "_order", "_owners")

    def __init__(
        self, costs: Sequence[int], survivals: Survivals, caps: Sequence[int], floors: Sequence[int]
    ) -> None:
        flat: list[int] = []
        owners: list[int] = []
        for idx, survival in enumerate(survivals):
            part = survival[floors[idx] : caps[idx]]
            flat += part
            owners += [idx] * len(part)
        # A reversed sort keeps equal ones in their order: by request, then by position.
        order = sorted(range(len(flat)), key=flat.__getitem__, reverse=True)
        start = len(caps) * ONE
        first = sum(floors)
        if first:
            start += sum([sum(survival[:floor]) for survival, floor in zip(survivals, floors, strict=True)])
        tokens = list(accumulate(map(flat.__getitem__, order), initial=start))
        super().__init__(tokens, costs[first:] if first else costs, range(first, first + len(tokens)))
        self._caps = caps
        self._floors = floors
        self._order = order
        self._owners = owners

    def widths(self, idx: int) -> tuple[int, ...]:
        if idx == len(self._order):
            return tuple(self._caps)
        widths, owners = list(self._floors), self._owners
        for token in self._order[:idx]:
            widths[owners[token]] += 1
        return tuple(widths)

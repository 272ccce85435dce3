"""The account that bounds regret: a step is taken only if its worst case is paid for beforehand.

Regret of a step is what it costs beyond what plain decoding would have needed for the same tokens, in plain
steps. With `limit` L, `income` e per token and any sequence of acceptances, after every settled step

    spent <= L + e * tokens                                                                  (1)

Proof. A step of worst case c is taken only if spent + reserved + c <= allowed, where allowed is the right
side of (1) and reserved the worst cases of the steps in flight. A step's charge is its worst case minus the
accepted tokens, so at most its worst case; lower charges only help, and `allowed` never falls.

`left` is also held at `most` from above, by raising `spent`. That can only make (1) stricter, and it gives
every window of time the bound  most + e * tokens in the window: a long good time cannot pay for a long bad
one.

Kept is `left` = allowed - spent - reserved alone, since the batch asks for it in every step: a settled step
gives back its worst case less its charge, and raising `spent` to allowed - most is left <= most - reserved.
"""

from __future__ import annotations


class RegretAccount:
    """Amounts are in units of fixed_point.PLAIN. income_shift: a token earns 1/2^income_shift of a plain
    step; None earns nothing. left: what a step may cost at worst, now."""

    __slots__ = ("_income_shift", "_most", "_reserved", "left")

    def __init__(self, *, limit: int, most: int, income_shift: int | None = None) -> None:
        self._most = most
        self._income_shift = income_shift
        self._reserved = 0
        self.left = limit

    def reserve(self, worst: int) -> None:
        assert worst <= self.left, "a step beyond the account was planned"
        self._reserved += worst
        self.left -= worst

    def settle(self, worst: int, charge: int) -> None:
        """The step for which `worst` was reserved did cost `charge` (negative: it gained)."""
        assert charge <= worst, "a step cost more than its worst case"
        self._reserved -= worst
        self.left = min(self.left + worst - charge, self._most - self._reserved)

    def earn(self, progress: int) -> None:
        """progress: tokens in units of PLAIN (1 token = PLAIN)."""
        if self._income_shift is not None:
            self.left = min(self.left + (progress >> self._income_shift), self._most - self._reserved)

"""Fixed-point numbers: every decision is integer arithmetic, so every rank takes the same one.

ONE = 65,536 is the probability 1. PLAIN = 1,048,576 is one plain step: the time in which a batch would have
decoded one token per request without speculation. Regret and charges are counted in PLAIN, rounded up.
"""

from __future__ import annotations

ONE = 1 << 16
PLAIN = 1 << 20


def ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def survival_of(chances: tuple[int, ...]) -> tuple[int, ...]:
    """Chance that the first 1, 2, ... draft tokens are all accepted;
    chances are per position, given the ones before it."""
    survival, product = [], ONE
    for chance in chances:
        product = product * chance >> 16
        survival.append(product)
    return tuple(survival)

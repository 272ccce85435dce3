"""Two-sample chi-square of counts: how likely is such a difference where both have one distribution?"""

import math
from collections.abc import Hashable, Mapping

_LEAST_EXPECTED = 5.0  # cells that expect fewer are put together: the approximation fails below


def compare_counts(one: Mapping[Hashable, int], other: Mapping[Hashable, int]) -> float:
    """p. 1 where there is nothing to compare (one kind of outcome only)."""
    total_one, total_other = sum(one.values()), sum(other.values())
    total = total_one + total_other
    smaller = min(total_one, total_other) / total
    cells: list[tuple[int, int]] = []
    rest_one = rest_other = 0
    for key in {*one, *other}:
        pair = (one.get(key, 0), other.get(key, 0))
        if sum(pair) * smaller >= _LEAST_EXPECTED:
            cells.append(pair)
        else:
            rest_one, rest_other = rest_one + pair[0], rest_other + pair[1]
    if (rest_one + rest_other) * smaller >= _LEAST_EXPECTED:
        cells.append((rest_one, rest_other))
    if len(cells) < 2:
        return 1.0
    statistic = 0.0
    for pair in cells:
        for seen, share in zip(pair, (total_one / total, total_other / total), strict=True):
            expected = sum(pair) * share
            statistic += (seen - expected) ** 2 / expected
    return chi_square_tail(statistic, len(cells) - 1)


def chi_square_tail(value: float, freedom: int) -> float:
    """P(X > value) of a chi-square variable: the upper incomplete gamma function."""
    shape, x = freedom / 2, value / 2
    if x <= 0:
        return 1.0
    scale = math.exp(-x + shape * math.log(x) - math.lgamma(shape))
    if x < shape + 1:  # series of the lower function
        term = total = 1 / shape
        place = shape
        while term > total * 1e-15:
            place += 1
            term *= x / place
            total += term
        return max(0.0, 1 - total * scale)
    b = x + 1 - shape  # continued fraction of the upper one, by Lentz
    c, d = 1e300, 1 / b
    fraction = d
    for idx in range(1, 10_000):
        a = -idx * (idx - shape)
        b += 2
        d = 1 / (a * d + b)
        c = b + a / c
        step = c * d
        fraction *= step
        if abs(step - 1) < 1e-14:
            break
    return scale * fraction

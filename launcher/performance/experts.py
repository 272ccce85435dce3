"""How many different experts a step touches, and how unevenly expert groups share them."""

from __future__ import annotations

import math
from functools import lru_cache

# Mean of the largest of n standard normal values (order statistics).
_LARGEST_OF = {1: 0.0, 2: 0.5642, 3: 0.8463, 4: 1.0294, 8: 1.4236}


@lru_cache(maxsize=4096)
def draw_chances(num_experts: int, per_row: float, skew: float) -> tuple[float, ...]:
    """Chance of each expert to be among the `per_row` of one row: in proportion to its rank to the power
    -skew, none above 1, `per_row` in all. A skew of 0 draws all alike."""
    weights = [float((rank + 1) ** -skew) for rank in range(num_experts)]
    # The most popular experts that would pass 1 stand at 1; the others share what is left.
    certain, left = 0, sum(weights)
    while certain < num_experts and weights[certain] * (per_row - certain) >= left:
        left -= weights[certain]
        certain += 1
    if certain == num_experts:
        return (1.0,) * num_experts
    scale = (per_row - certain) / left
    return (1.0,) * certain + tuple(weight * scale for weight in weights[certain:])


def distinct_experts(
    num_experts: int, per_row: float, rows: float, *, skew: float = 0.0, pool: float | None = None
) -> float:
    """Expected number of different experts that `rows` rows touch, each drawing for itself.

    `pool`: experts in play where the rows are of one text: that many, each drawn as much more often."""
    share = 1.0 if pool is None else min(1.0, pool / num_experts)
    chances = draw_chances(num_experts, min(num_experts, per_row / share), skew)
    return share * sum(1 - math.pow(1 - chance, rows) for chance in chances)


def group_imbalance(experts_touched: float, ep: int, num_experts: int) -> float:
    """Experts of the fullest of `ep` groups over the mean: the others wait for it.

    Touched experts fall into groups without replacement. Group counts are exchangeable, so their largest lies
    sqrt(variance - covariance) times the order statistic above the mean; that root is sqrt(mean), less as
    fewer experts are left untouched."""
    if ep == 1 or experts_touched <= 0:
        return 1.0
    mean = experts_touched / ep
    spread = math.sqrt(mean * max(0.0, num_experts - experts_touched) / (num_experts - 1))
    return 1 + _LARGEST_OF[ep] * spread / mean

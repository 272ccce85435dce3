"""The odd int64 multipliers that mix a window's tokens, one per (layer, look-back)."""

import numpy as np
from numpy.typing import NDArray

_SEED_STRIDE = 10007


def draw_multipliers(
    *, layer_ids: tuple[int, ...], window_tokens: int, num_classes: int
) -> NDArray[np.int64]:
    """int64 [len(layer_ids), window_tokens] from numpy's PCG64 stream seeded per layer.

    Bounded so that class id x multiplier stays below 2^63: products and their XOR are never negative.
    """
    bound = max(1, np.iinfo(np.int64).max // num_classes // 2)
    rows = [
        np.random.default_rng(_SEED_STRIDE * layer_id).integers(0, bound, size=window_tokens, dtype=np.int64)
        for layer_id in layer_ids
    ]
    return np.stack(rows) * 2 + 1

"""Row ids the slow and obvious way, one token at a time, in Python integers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engram.hash_layout import HashLayout
from engram.hash_rows import IMAGE_BASE_ID
from engram.token_map import TokenMap


def reference_rows(
    layout: HashLayout,
    token_map: TokenMap,
    tokens: Sequence[int],
    *,
    pad_token_id: int,
    image_token_id: int | None = None,
) -> NDArray[np.int64]:
    """int64 [tokens, layers, columns] of a whole sequence that starts at position 0."""
    pad_class = int(token_map.class_ids[pad_token_id])
    multipliers = layout.multipliers().tolist()
    rows = np.empty((len(tokens), len(layout.layer_ids), layout.num_columns), dtype=np.int64)
    for position in range(len(tokens)):
        classes = _window_classes(layout, token_map, tokens, position, pad_class, image_token_id)
        for layer_idx, layer_id in enumerate(layout.layer_ids):
            products = [c * m for c, m in zip(classes, multipliers[layer_idx], strict=True)]
            starts = layout.column_bounds(layer_id)
            for column, prime in enumerate(layout.primes[layer_idx]):
                mixed = 0
                for product in products[: column // layout.num_heads + 2]:
                    mixed ^= product
                rows[position, layer_idx, column] = mixed % prime + starts[column]
    return rows


def _window_classes(
    layout: HashLayout,
    token_map: TokenMap,
    tokens: Sequence[int],
    position: int,
    pad_class: int,
    image_token_id: int | None,
) -> list[int]:
    classes: list[int] = []
    blocked = False
    for lookback in range(layout.window_tokens):
        token = tokens[position - lookback] if lookback <= position else None
        is_image = (
            image_token_id is not None
            and token is not None
            and (token == image_token_id or token >= IMAGE_BASE_ID)
        )
        blocked = blocked or token is None or is_image
        classes.append(pad_class if blocked or token is None else int(token_map.class_ids[token]))
    return classes

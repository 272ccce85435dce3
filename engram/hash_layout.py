"""Sizes, starts and multipliers of all hash columns of a model."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from engram.errors import CheckpointError
from engram.model_config import EngramConfig
from engram.multipliers import draw_multipliers
from engram.primes import draw_column_primes


@dataclass(frozen=True, slots=True, kw_only=True)
class HashLayout:
    """Column c of a layer hashes (c // num_heads + 2)-grams into primes[layer][c] rows."""

    layer_ids: tuple[int, ...]
    window_tokens: int
    num_heads: int
    num_classes: int
    primes: tuple[tuple[int, ...], ...]
    head_dim: int

    @property
    def num_columns(self) -> int:
        return (self.window_tokens - 1) * self.num_heads

    def column_bounds(self, layer_id: int) -> tuple[int, ...]:
        """num_columns + 1 prefix sums: column c of the layer owns rows [bounds[c], bounds[c + 1])."""
        return (0, *accumulate(self.primes[self.layer_ids.index(layer_id)]))

    def num_rows(self, layer_id: int) -> int:
        return self.column_bounds(layer_id)[-1]

    def multipliers(self) -> NDArray[np.int64]:
        """int64 [layers, window_tokens]."""
        return draw_multipliers(
            layer_ids=self.layer_ids, window_tokens=self.window_tokens, num_classes=self.num_classes
        )


def make_hash_layout(config: EngramConfig) -> HashLayout:
    """Draws the primes; refuses a config whose engram_num_embeddings are not their sums."""
    layout = HashLayout(
        layer_ids=config.engram_layer_ids,
        window_tokens=config.engram_max_ngram_size,
        num_heads=config.engram_n_heads,
        num_classes=config.engram_compressed_vocab_size,
        primes=draw_column_primes(
            num_layers=len(config.engram_layer_ids),
            num_orders=config.engram_max_ngram_size - 1,
            num_heads=config.engram_n_heads,
            vocab_size=config.engram_vocab_size,
        ),
        head_dim=config.engram_head_dim,
    )
    for layer_id, num_rows in zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True):
        if layout.num_rows(layer_id) != num_rows:
            raise CheckpointError(
                f"engram_num_embeddings of layer {layer_id} must be {layout.num_rows(layer_id)}, "
                f"the sum of its column primes, got {num_rows} (config.json).",
                hint="use the config.json of the checkpoint's own revision, unchanged",
            )
    return layout

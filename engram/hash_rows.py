"""Token ids -> row ids, for all hash columns or for one rank's.

T tokens, L Engram layers, C hash columns, R runs, W tokens of a window (the token and W - 1 before it).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engram._core import RowHasher as _NativeHasher
from engram.errors import TableMismatchError, TokenIdError
from engram.hash_layout import HashLayout
from engram.token_map import TokenMap

# Serving engines replace the tokens of an image by ids from here on (SGLang's MM_PAD_SHIFT_VALUE).
IMAGE_BASE_ID = 1_000_000

Ids = NDArray[np.int64]


class RowHasher:
    """Holds the tables of one model; every method may be called from any thread and releases the GIL.

    With rank and tp only the columns dealt to that rank are hashed (c % tp == rank). Row ids always count the
    rows of the layer's whole table, as the row store takes them.
    """

    def __init__(
        self,
        layout: HashLayout,
        token_map: TokenMap,
        *,
        pad_token_id: int,
        image_token_id: int | None = None,
        rank: int = 0,
        tp: int = 1,
    ) -> None:
        if not 0 <= rank < tp <= layout.num_columns:
            raise TableMismatchError(
                f"rank and tp must be 0 <= rank < tp <= {layout.num_columns}, the number of hash columns, "
                f"got rank {rank} of {tp}.",
                hint="a rank without columns has no rows; pass the number of nodes that share the tables",
            )
        columns = range(layout.num_columns)[rank::tp]
        self.num_layers = len(layout.layer_ids)
        self.columns = tuple(columns)
        self.window_tokens = layout.window_tokens
        primes = [[layer[column] for column in columns] for layer in layout.primes]
        bounds = [layout.column_bounds(layer_id) for layer_id in layout.layer_ids]
        offsets = [[layer[column] for column in columns] for layer in bounds]
        self._vocab_size = len(token_map.class_ids)
        self._native = _NativeHasher(
            class_ids=token_map.class_ids,
            multipliers=layout.multipliers(),
            orders=np.array([column // layout.num_heads + 1 for column in columns], dtype=np.int32),
            primes=np.array(primes, dtype=np.int64),
            offsets=np.array(offsets, dtype=np.int64),
            pad_class=int(token_map.class_ids[pad_token_id]),
            image_token_id=-1 if image_token_id is None else image_token_id,
            image_base_id=IMAGE_BASE_ID,
        )

    def hash_prompt(
        self,
        token_ids: Sequence[int] | NDArray[np.integer],
        *,
        start_position: int = 0,
        history: Sequence[int] = (),
        out: Ids | None = None,
    ) -> Ids:
        """int64 [T, L, C] of one sequence's consecutive tokens, of which the first has start_position.

        `history` holds the tokens before them, oldest first; those older than the window are not looked at.
        """
        needed = min(start_position, self.window_tokens - 1)
        if len(history) < needed:
            raise ValueError(
                f"history must hold the {needed} tokens before start_position, got {len(history)}"
            )
        row = np.zeros((1, self.window_tokens - 1), dtype=np.int64)
        if needed:
            row[0, -needed:] = np.asarray(history[-needed:])
        tokens = _int64(token_ids)
        return self.hash_runs(
            tokens, lengths=[len(tokens)], start_positions=[start_position], history=row, out=out
        )

    def hash_runs(
        self,
        token_ids: Sequence[int] | NDArray[np.integer],
        *,
        lengths: Sequence[int] | NDArray[np.integer],
        start_positions: Sequence[int] | NDArray[np.integer],
        history: NDArray[np.integer],
        out: Ids | None = None,
    ) -> Ids:
        """int64 [T, L, C] of a batch: R runs of consecutive tokens after one another in token_ids.

        history [R, W - 1], oldest first, holds what precedes each run; entries before position 0 are ignored.
        Tokens past the last run (a CUDA graph's padding) hash as empty windows. Decode is runs of length 1.
        """
        tokens = _int64(token_ids)
        out = self._output(len(tokens), out)
        bad = self._native.hash_runs(tokens, _int64(lengths), _int64(start_positions), _int64(history), out)
        self._refuse(bad)
        return out

    def hash_windows(
        self, windows: NDArray[np.integer], blocked: NDArray[np.bool_], *, out: Ids | None = None
    ) -> Ids:
        """int64 [T, L, C] of windows [T, W], the s-th predecessor in column s; blocked [T, W] = no token."""
        windows = _int64(windows)
        out = self._output(len(windows), out)
        bad = self._native.hash_windows(windows, np.ascontiguousarray(blocked, dtype=np.uint8), out)
        self._refuse(bad)
        return out

    def _output(self, num_tokens: int, out: Ids | None) -> Ids:
        if out is not None:
            return out
        return np.empty((num_tokens, self.num_layers, len(self.columns)), dtype=np.int64)

    def _refuse(self, bad_idx: int) -> None:
        if bad_idx >= 0:
            raise TokenIdError(
                f"token ids must be 0 to {self._vocab_size - 1} (or an image's), "
                f"got another one in the window of token {bad_idx} (hash input).",
                hint="tokenize with the checkpoint's own tokenizer.json",
            )


def _int64(values: Sequence[int] | NDArray[np.integer]) -> Ids:
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"token ids, lengths and positions must be integers, got {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)

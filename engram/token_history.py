"""The last W - 1 tokens of every running request, kept between forward steps."""

import numpy as np
from numpy.typing import NDArray

from engram.hash_rows import IMAGE_BASE_ID


class TokenHistory:
    """rows int32 [num_slots, W - 1], oldest first; one row per request slot. Not thread-safe: one owner."""

    def __init__(self, *, num_slots: int, window_tokens: int, image_token_id: int | None = None) -> None:
        self.rows = np.zeros((num_slots, window_tokens - 1), dtype=np.int32)
        self._image_token_id = image_token_id

    def admit(self, slot: int, tokens_before: list[int]) -> None:
        """Start a request (or resume one after retraction or a prefix-cache hit) behind these tokens."""
        width = self.rows.shape[1]
        # Image ids do not fit int32; any id from the base on reads the same.
        newest = [min(token, IMAGE_BASE_ID) for token in tokens_before[-width:]]
        self.rows[slot] = [0] * (width - len(newest)) + newest

    def commit_run(self, slot: int, token_ids: NDArray[np.integer]) -> None:
        """After an extend or decode step: the run's tokens are now the past."""
        self._shift(slot, self._without_image_ids(token_ids[-self.rows.shape[1] :]))

    def commit_verified(self, slot: int, block: NDArray[np.integer], num_accepted: int) -> None:
        """After a verify step: only the anchor and the accepted drafts (num_accepted tokens) are the past.

        Rejected drafts leave no trace, and the bonus token is the next block's anchor.
        """
        if not 0 <= num_accepted <= len(block):
            raise ValueError(f"num_accepted must be 0 to {len(block)}, got {num_accepted}")
        self._shift(slot, block[:num_accepted])

    def _shift(self, slot: int, newest: NDArray[np.integer]) -> None:
        width = self.rows.shape[1]
        self.rows[slot] = np.concatenate([self.rows[slot], newest])[-width:]

    def _without_image_ids(self, token_ids: NDArray[np.integer]) -> NDArray[np.integer]:
        if self._image_token_id is None:
            return token_ids
        return np.where(token_ids >= IMAGE_BASE_ID, self._image_token_id, token_ids)

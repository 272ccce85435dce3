"""Look-ahead from admission: a prompt's rows are read from disk while the request still waits its turn.

Follows every request from the queue to its last prompt chunk; whatever ends it before (abort, retraction)
releases what was read ahead for it. Only speed depends on this: rows that were not read ahead are read when
the chunk is staged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sgl_ext.engram.row_service import RowService

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Tracked:
    key: int
    num_tokens: int
    announced: Future[None]


class AdmissionLookahead:
    """All methods are the scheduler thread's; hashing and announcing run on one thread of their own."""

    def __init__(self, service: RowService, hasher: Any) -> None:
        self._service = service
        self._hasher = hasher
        self._is_on = service.settings.lookahead_bytes > 0
        self._tracked: dict[str, _Tracked] = {}
        self._next_key = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engram-lookahead")

    @property
    def num_tracked(self) -> int:
        return len(self._tracked)

    def admitted(self, request_id: str, token_ids: list[int]) -> None:
        """A request entered the queue (again, after a retraction) with these tokens to prefill."""
        if not self._is_on or not token_ids:
            return
        self.ended(request_id)
        key = self._next_key
        self._next_key += 1
        announced = self._later(self._announce, key, list(token_ids))
        self._tracked[request_id] = _Tracked(key=key, num_tokens=len(token_ids), announced=announced)

    def consumed(self, request_id: str, num_tokens: int) -> None:
        """The rows of the first num_tokens have been handed out, or will not be asked for (prefix cache)."""
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        if num_tokens >= tracked.num_tokens:
            self.ended(request_id)
            return
        self._later(self._advance, tracked.key, num_tokens)

    def ended(self, request_id: str) -> None:
        tracked = self._tracked.pop(request_id, None)
        if tracked is not None:
            tracked.announced.cancel()
            self._later(self._service.store.cancel_request, tracked.key)

    def keep_only(self, live_request_ids: Iterable[str]) -> None:
        """Drops requests that left the queue without a prefill: aborted, or refused."""
        for request_id in self._tracked.keys() - set(live_request_ids):
            self.ended(request_id)

    def wait(self) -> None:
        """Blocks until everything said so far is with the store; for tests and for a clean end."""
        self._worker.submit(lambda: None).result()

    def _later(self, call: Callable[..., None], *arguments: object) -> Future[None]:
        future = self._worker.submit(call, *arguments)
        future.add_done_callback(_report)
        return future

    def _announce(self, key: int, token_ids: list[int]) -> None:
        windows = make_windows(token_ids, self._hasher.max_ngram_size)
        ids, _ = self._hasher.hash_windows(*windows)
        own = ids[:, :, self._service.rank :: self._service.tp]
        for layer, table in enumerate(self._service.tables):
            rows = np.ascontiguousarray(own[:, layer].numpy()).reshape(-1)
            self._service.store.prefetch(key, table.layer_id, rows)

    def _advance(self, key: int, num_tokens: int) -> None:
        for table in self._service.tables:
            self._service.store.advance(key, table.layer_id, num_tokens * self._service.columns_per_rank)


def make_windows(token_ids: list[int], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole prompt: tokens [T, size] with the s-th predecessor in column s, and where there is none."""
    padded = np.concatenate([np.zeros(size - 1, np.int64), np.asarray(token_ids, dtype=np.int64)])
    tokens = np.lib.stride_tricks.sliding_window_view(padded, size)[:, ::-1]
    positions = torch.arange(len(token_ids))
    return torch.from_numpy(tokens.copy()), positions.unsqueeze(-1) < torch.arange(size)


def _report(future: Future[None]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        logger.error("Engram look-ahead failed, rows are read on demand instead: %s", error)

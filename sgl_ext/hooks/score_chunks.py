"""_score_chunks of the prefill indexer: as many rows at a time as a given number of bytes holds.

SGLang cuts a chunk's rows so that one [rows, heads, positions] tensor in bf16 stays below 1 GiB, and says
that about three of them live at once. On a GB10 that is memory of the KV pool; here the whole has a bound.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from sgl_ext.errors import SettingError
from sgl_ext.hook import Hook, HookKind

TRANSIENT_VARIABLE = "SPARKCTL_INDEXER_TRANSIENT_MIB"
_DEFAULT_MIB, _LOWEST_MIB = 768, 16
_LIVE_AT_ONCE = 3  # SGLang's own count, scoring.py
_ELEMENT_BYTES = 2


def read_transient_bytes(environment: Mapping[str, str]) -> int:
    """Bytes that scores of a prefill chunk may take at a time. Raises SettingError."""
    text = environment.get(TRANSIENT_VARIABLE, str(_DEFAULT_MIB))
    if not text.isdigit() or int(text) < _LOWEST_MIB:
        raise SettingError(
            f"{TRANSIENT_VARIABLE} must be a number of MiB from {_LOWEST_MIB} on, got {text!r} "
            "(environment).",
            hint=f"unset {TRANSIENT_VARIABLE}",
        )
    return int(text) << 20


def rows_at_a_time(transient_bytes: int, heads: int, positions: int) -> int:
    """One row at least: beyond 4 million positions at 32 heads that alone is 768 MiB.

    >>> rows_at_a_time(768 << 20, 32, 1 << 20)
    4
    """
    return max(1, transient_bytes // (_LIVE_AT_ONCE * _ELEMENT_BYTES * heads * positions))


def score_in_bounds(*, indexer: Any, q: Any, weights: Any, index_k: Any, request: Any) -> Iterator[Any]:
    """As SGLang's, with another number of rows: a row's scores do not depend on the others."""
    from sglang.srt.layers.attention.dsv4.v41_indexer.scoring import ChunkScores

    count = rows_at_a_time(read_transient_bytes(os.environ), q.shape[1], index_k.shape[0])
    for start in range(0, request.tok.numel(), count):
        rows = slice(start, start + count)
        tok, lens = request.tok[rows], request.lens[rows]
        scores = indexer.scores(q[tok], index_k, weights[tok])[:, : request.lc]
        scores = scores.masked_fill(request.columns[None, :] >= lens[:, None], float("-inf"))
        yield ChunkScores(rows=rows, tok=tok, lens=lens, scores=scores)


def read_early(_scheduler: Any) -> str | None:
    """A bad value ends the start, not the first prompt."""
    read_transient_bytes(os.environ)
    return None


HOOK = Hook(
    target="sglang.srt.layers.attention.dsv4.v41_indexer.scoring._score_chunks",
    kind=HookKind.REPLACE,
    replacement=score_in_bounds,
    reason="up to 3 GiB of scores at a time, which a GB10 has to keep free of its KV pool",
    sglang_versions=("0.5.23",),
    fingerprint="798812a3b2d658c7",
    remove_when="SGLang's budget is an option",
    check_effect=read_early,
)

"""Which graphs a compact engine captures beside those of whole blocks. The runner is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sgl_ext.hooks.spec_plain_capture import capture_plain_too
from sgl_ext.hooks.spec_plain_tiers import add_plain_tiers

WIDTH = 6


def runner(*batches: int, ragged: bool = True) -> Any:
    return SimpleNamespace(capture_bs=list(batches), captured_req_width=WIDTH, ragged_verify_mode=ragged)


def stock_tiers(made: Any) -> list[int]:
    """As SGLang's."""
    return sorted({batch * made.captured_req_width for batch in made.capture_bs})


def captured(made: Any) -> list[int]:
    """Rows of every graph, computed as SGLang's capture does."""
    rows: list[int] = []

    def capture(runner: Any, size: int, forward: Any) -> None:
        rows.append(size * runner.captured_req_width)

    for batch in reversed(made.capture_bs):
        capture_plain_too(capture, made, batch, None)
    return rows


def test_every_tier_has_one_graph() -> None:
    made = runner(1, 2, 4, 6, 12, 16)
    rows = captured(made)
    assert sorted(rows) == add_plain_tiers(stock_tiers, made)
    assert len(rows) == len(set(rows))
    assert {1, 2, 4, 6, 12, 16, 24, 36, 72, 96} == set(rows)


def test_other_runners_keep_their_graphs() -> None:
    assert captured(runner(1, 4, ragged=False)) == [24, 6]

"""Look-ahead from admission, with the real row store: who is read ahead, and who releases what when."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engram.checkpoint import open_checkpoint  # noqa: E402
from engram.hash_rows import RowHasher  # noqa: E402
from engram.row_store import RowStore, open_row_store  # noqa: E402
from engram.token_map import load_token_map  # noqa: E402
from sgl_ext.engram.admission import AdmissionLookahead, make_windows  # noqa: E402
from sgl_ext.engram.open_rank_store import EngramTable  # noqa: E402
from tests.sgl_ext.engram_rows.conftest import LAYERS  # noqa: E402


class Hasher:
    """hash_windows as SGLang's EngramHasher has it, by the row store's own hash."""

    max_ngram_size = 4

    def __init__(self, model_dir: Path) -> None:
        checkpoint = open_checkpoint(model_dir)
        token_map = load_token_map(model_dir, expected_classes=checkpoint.config.engram_compressed_vocab_size)
        self.rows = RowHasher(checkpoint.layout, token_map, pad_token_id=2)

    def hash_windows(self, tokens: torch.Tensor, blocked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.rows.hash_windows(tokens.numpy(), blocked.numpy())), tokens


@pytest.fixture
def store(packed_dir: Path) -> Iterator[RowStore]:
    files = [packed_dir / f"layer-{layer:02d}.rank-0of1.engram" for layer in LAYERS]
    with open_row_store(
        files, allow_buffered=True, cache_bytes=1 << 22, lookahead_budget_bytes=1 << 24
    ) as opened:
        yield opened


@pytest.fixture
def lookahead(store: RowStore, model_dir: Path) -> AdmissionLookahead:
    tables = [
        EngramTable(layer_id=header.layer_id, num_rows=header.total_rows, dim=header.weight_bytes)
        for header in store.headers
    ]
    service = SimpleNamespace(
        store=store,
        rank=0,
        tp=1,
        tables=tables,
        columns_per_rank=24,
        settings=SimpleNamespace(lookahead_bytes=1),
    )
    return AdmissionLookahead(service, Hasher(model_dir))


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(260, 900, length).tolist()


def wait_until_read(store: RowStore, lookahead: AdmissionLookahead) -> None:
    lookahead.wait()
    for _ in range(2000):
        counters = store.counters()
        planned = counters.lookahead_rows
        if planned and counters.lookahead_staged_rows + counters.lookahead_unused_rows >= planned:
            return
        import time

        time.sleep(0.005)
    raise AssertionError(f"look-ahead did not finish: {store.counters()}")


def test_windows_are_the_tokens_and_their_predecessors() -> None:
    tokens, blocked = make_windows([5, 6, 7], 4)
    assert tokens.tolist() == [[5, 0, 0, 0], [6, 5, 0, 0], [7, 6, 5, 0]]
    assert blocked.tolist() == [
        [False, True, True, True],
        [False, False, True, True],
        [False, False, False, True],
    ]


def test_announced_prompt_is_in_memory_when_it_is_asked_for(
    store: RowStore, lookahead: AdmissionLookahead, model_dir: Path
) -> None:
    tokens = prompt(64)
    lookahead.admitted("a", tokens)
    wait_until_read(store, lookahead)
    before = store.counters()
    ids, _ = Hasher(model_dir).hash_windows(*make_windows(tokens, 4))
    for layer, place in zip(LAYERS, range(2), strict=True):
        store.read_rows(layer, ids[:, place].numpy().reshape(-1))
    after = store.counters()
    assert after.missed_rows == before.missed_rows
    assert after.hit_rows - before.hit_rows == 64 * 24 * 2


@pytest.mark.parametrize("how", ["ended", "last chunk", "left the queue"])
def test_every_way_out_of_the_queue_releases_the_rows(
    how: str, store: RowStore, lookahead: AdmissionLookahead
) -> None:
    lookahead.admitted("a", prompt(50))
    wait_until_read(store, lookahead)
    assert store.counters().lookahead_held_rows > 0
    if how == "ended":
        lookahead.ended("a")
    elif how == "last chunk":
        lookahead.consumed("a", 30)
        assert lookahead.num_tracked == 1
        lookahead.consumed("a", 50)
    else:
        lookahead.keep_only({"b"})
    assert lookahead.num_tracked == 0
    lookahead.wait()
    for _ in range(400):
        if store.counters().lookahead_held_rows == 0:
            return
        import time

        time.sleep(0.005)
    raise AssertionError(f"rows are still held: {store.counters()}")


def test_prefix_hit_skips_what_is_cached(store: RowStore, lookahead: AdmissionLookahead) -> None:
    """The first chunk starts behind a cached prefix: what lies before is not read any more."""
    lookahead.admitted("a", prompt(200))
    lookahead.consumed("a", 199)
    lookahead.wait()
    assert lookahead.num_tracked == 1
    lookahead.consumed("a", 200)
    assert lookahead.num_tracked == 0


def test_retracted_request_comes_back_under_its_own_name(
    store: RowStore, lookahead: AdmissionLookahead
) -> None:
    lookahead.admitted("a", prompt(20))
    lookahead.consumed("a", 20)
    lookahead.admitted("a", prompt(20) + prompt(7, seed=1))
    assert lookahead.num_tracked == 1
    lookahead.consumed("a", 20)
    assert lookahead.num_tracked == 1
    lookahead.consumed("a", 27)
    assert lookahead.num_tracked == 0
    lookahead.wait()


def test_unknown_requests_and_empty_prompts_are_nothing(lookahead: AdmissionLookahead) -> None:
    lookahead.consumed("nobody", 5)
    lookahead.ended("nobody")
    lookahead.admitted("a", [])
    assert lookahead.num_tracked == 0


def test_look_ahead_that_fails_is_told_and_not_raised(
    lookahead: AdmissionLookahead, caplog: pytest.LogCaptureFixture
) -> None:
    lookahead.admitted("a", [999_999])  # no such token
    lookahead.wait()
    assert "Engram look-ahead failed, rows are read on demand instead" in caplog.text

"""Reading ahead: rows are there before they are asked for, under the budget, and dropped when unwanted."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engram import _core
from engram.errors import RowIdError
from engram.row_store import RowStore
from tests.engram.packed_folder import PackedFolder, write_packed_folder
from tests.engram.test_row_store import READING_BACKENDS, joined, open_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PackedFolder:
    return write_packed_folder(tmp_path_factory.mktemp("packed"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited ten seconds"
        time.sleep(0.005)


def held(store: RowStore) -> int:
    return store.counters().lookahead_held_rows


@pytest.mark.parametrize("backend", READING_BACKENDS)
def test_announced_rows_are_served_from_memory(folder: PackedFolder, backend: str) -> None:
    ids = np.random.default_rng(0).choice(folder.owned_ids(1), 2000)
    unique = len(np.unique(ids))
    with open_folder(folder, backend=backend, lookahead_budget_bytes=4_000_000, self_test_blocks=0) as store:
        store.prefetch(1, 1, ids)
        wait_until(lambda: store.counters().lookahead_staged_rows == unique)
        before = store.counters()
        assert np.array_equal(joined(store.read_rows(1, ids)), folder.tables[1][ids])
        after = store.counters()
    assert after.hit_rows - before.hit_rows == len(ids)
    assert after.pages == before.pages == 0
    assert after.lookahead_held_rows == 0
    assert after.lookahead_unused_rows == 0


def test_the_budget_is_kept_and_consumption_moves_it_on(folder: PackedFolder) -> None:
    ids = folder.owned_ids(1)
    with open_folder(folder, lookahead_budget_bytes=300_000, self_test_blocks=0) as store:
        slots = store.counters().cache_slots
        assert slots < len(ids) // 3
        store.prefetch(1, 1, ids)
        hits = 0
        for start in range(0, len(ids), 250):
            wait_until(lambda start=start: held(store) > 0 or start + slots > len(ids))
            assert held(store) <= slots
            time.sleep(0.01)
            before = store.counters().hit_rows
            chunk = ids[start : start + 250]
            assert np.array_equal(joined(store.read_rows(1, chunk)), folder.tables[1][chunk])
            hits += store.counters().hit_rows - before
            store.advance(1, 1, start + len(chunk))
        assert hits > len(ids) * 0.8
        store.cancel_request(1)
        wait_until(lambda: held(store) == 0)


def test_cancelled_and_skipped_rows_free_the_budget(folder: PackedFolder) -> None:
    with open_folder(folder, lookahead_budget_bytes=600_000, self_test_blocks=0) as store:
        ids = folder.owned_ids(1)
        store.prefetch(1, 1, ids)
        wait_until(lambda: held(store) > 500)
        store.cancel_request(1)
        wait_until(lambda: held(store) == 0)
        # A prefix found in a prefix cache: nobody will ask for these rows.
        store.prefetch(2, 1, ids)
        wait_until(lambda: held(store) > 500)
        store.advance(2, 1, len(ids))
        wait_until(lambda: held(store) == 0)
        assert store.counters().lookahead_unused_rows > 0
        store.cancel_request(99)


def test_two_requests_share_the_budget(folder: PackedFolder) -> None:
    with open_folder(folder, lookahead_budget_bytes=400_000, self_test_blocks=0) as store:
        first, second = np.array_split(folder.owned_ids(1), 2)
        store.prefetch(1, 1, first)
        store.prefetch(2, 1, second)
        wait_until(lambda: store.counters().lookahead_staged_rows > 0.6 * store.counters().cache_slots)
        store.cancel_request(1)
        wait_until(lambda: held(store) > 0.6 * store.counters().cache_slots)
        chunk = second[:100]
        before = store.counters().hit_rows
        assert np.array_equal(joined(store.read_rows(1, chunk)), folder.tables[1][chunk])
        assert store.counters().hit_rows - before == 100


def test_layers_are_read_in_step(folder: PackedFolder) -> None:
    with open_folder(folder, lookahead_budget_bytes=600_000, self_test_blocks=0) as store:
        for layer_id in store.layer_ids:
            store.prefetch(1, layer_id, folder.owned_ids(layer_id))
        wait_until(lambda: held(store) > 0.6 * store.counters().cache_slots)
        for layer_id in store.layer_ids:
            before = store.counters().hit_rows
            store.read_rows(layer_id, folder.owned_ids(layer_id)[:100])
            assert store.counters().hit_rows - before == 100


def test_foreign_ids_are_refused_at_once(folder: PackedFolder) -> None:
    with open_folder(folder, lookahead_budget_bytes=100_000) as store:
        ids = folder.owned_ids(1).copy()
        ids[1234] = -7
        with pytest.raises(RowIdError, match="got -7 at position 1234"):
            store.prefetch(1, 1, ids)
        assert store.counters().lookahead_rows == 0


def test_calls_without_a_budget_are_refused(folder: PackedFolder) -> None:
    with open_folder(folder) as store, pytest.raises(ValueError, match="lookahead_budget_bytes"):
        store.prefetch(1, 1, folder.owned_ids(1))


def test_a_decode_read_passes_a_running_look_ahead(tmp_path: Path) -> None:
    """The look-ahead's reads hang; decode reads are neither behind them nor kept from the drive."""
    folder = write_packed_folder(tmp_path, layer_ids=(1,))
    script = _core.FaultScript()
    options = {"lookahead_budget_bytes": 2_000_000, "lookahead_depth": 4, "queue_depth": 8, "deadline_s": 2}
    with open_folder(folder, seam=script, self_test_blocks=0, **options) as store:
        script.add(result=_core.FaultScript.HANG, times=4)
        ids = folder.owned_ids(1)
        store.prefetch(1, 1, ids[:2000])
        wait_until(lambda: script.applied == 4)
        decode = ids[3000:3100]
        assert np.array_equal(joined(store.read_rows(1, decode)), folder.tables[1][decode])
        # Else it would have waited until the look-ahead's reads were given up.
        assert store.counters().timed_out_reads == 0

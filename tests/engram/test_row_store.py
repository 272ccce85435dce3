"""Rows from the store against plain numpy: any split, any order, any backend, any thread."""

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engram import _core
from engram.errors import EngramError, RequestCancelled, RowIdError, WaitTimeout
from engram.row_source import Priority, RowPlanes
from engram.row_store import RowStore, open_row_store
from engram.self_test import Expected
from tests.engram.packed_folder import PackedFolder, write_packed_folder

READING_BACKENDS = ("io_uring", "threads")
CACHED = {"cache_bytes": 200_000, "lookahead_budget_bytes": 100_000}


def open_folder(folder: PackedFolder, **options) -> RowStore:
    # The test folder may lie on a file system that keeps files in memory: see test_row_store_open.py.
    return open_row_store(folder.files, **({"allow_buffered": True, "self_test_blocks": 1} | options))


def joined(planes: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.concatenate(planes, axis=1)


def planes_for(store: RowStore, count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    shape = store.shape
    # Poisoned: a row that nobody wrote cannot pass for zeros or for old bytes.
    return (
        np.full((count, shape.weight_bytes), 0xAA, dtype=np.uint8),
        np.full((count, shape.scale_bytes), 0xAA, dtype=np.uint8),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PackedFolder:
    return write_packed_folder(tmp_path_factory.mktemp("packed"), rank=1, tp=2)


@pytest.fixture(scope="module", params=["io_uring", "threads", "ram", "io_uring with cache"])
def store(request: pytest.FixtureRequest, folder: PackedFolder):
    backend, _, cached = request.param.partition(" with ")
    with open_folder(folder, backend=backend, **(CACHED if cached else {})) as opened:
        yield opened


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_ids_give_the_numpy_rows(store: RowStore, folder: PackedFolder, data: st.DataObject) -> None:
    layer_id = data.draw(st.sampled_from(store.layer_ids))
    owned = folder.owned_ids(layer_id)
    picks = data.draw(st.lists(st.integers(0, len(owned) - 1), max_size=400))
    ids = owned[np.array(picks, dtype=np.int64)]
    assert np.array_equal(joined(store.read_rows(layer_id, ids)), folder.tables[layer_id][ids])


@settings(max_examples=15, deadline=None)
@given(
    tp=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 90), min_size=4, max_size=12),
    weight_bytes=st.sampled_from([1, 32, 256, 4000]),
    scale_bytes=st.sampled_from([0, 1, 8, 96]),
    data=st.data(),
)
def test_any_shape_and_split_gives_all_rows(
    tmp_path_factory: pytest.TempPathFactory, tp, sizes, weight_bytes, scale_bytes, data
) -> None:
    directory = tmp_path_factory.mktemp("shape")
    rank = data.draw(st.integers(0, tp - 1))
    folder = write_packed_folder(
        directory,
        column_sizes=tuple(sizes),
        rank=rank,
        tp=tp,
        weight_bytes=weight_bytes,
        scale_bytes=scale_bytes,
        layer_ids=(3,),
    )
    backend = data.draw(st.sampled_from(["io_uring", "threads", "ram"]))
    with open_folder(folder, backend=backend, expect=Expected(rank=rank, tp=tp)) as store:
        ids = np.random.default_rng(0).permutation(folder.owned_ids(3))
        assert np.array_equal(joined(store.read_rows(3, ids)), folder.tables[3][ids])


def test_every_foreign_id_is_refused(store: RowStore, folder: PackedFolder) -> None:
    owned = folder.owned_ids(1)
    table_rows = len(folder.tables[1])
    foreign = np.setdiff1d(np.arange(table_rows), owned)
    assert len(foreign) > 0
    for bad in (*foreign[::97], -1, -(2**63), table_rows, 2**63 - 1):
        ids = owned[:40].copy()
        ids[33] = bad
        with pytest.raises(RowIdError, match=f"got {bad} at position 33"):
            store.read_rows(1, ids)


def test_wrong_arrays_are_refused(store: RowStore, folder: PackedFolder) -> None:
    ids = folder.owned_ids(1)[:4]
    weight, scale = planes_for(store, 3)
    with pytest.raises(ValueError, match="weight buffer must hold"):
        store.submit(1, ids, RowPlanes(weight=weight, scale=scale))
    with pytest.raises(TypeError):
        store.submit(1, ids.astype(np.int32), RowPlanes(weight=weight, scale=scale))
    with pytest.raises(KeyError):
        store.submit(2, ids, RowPlanes(weight=weight, scale=scale))
    readonly = np.zeros((4, store.shape.weight_bytes), dtype=np.uint8)
    readonly.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        store.submit(1, ids, RowPlanes(weight=readonly, scale=scale))
    many = np.resize(ids, _core.MAX_IDS_PER_SUBMIT + 1)
    with pytest.raises(ValueError, match="at most"):
        store.submit(1, many, RowPlanes(weight=weight, scale=scale))


def test_raw_addresses_receive_rows(store: RowStore, folder: PackedFolder) -> None:
    ids = folder.owned_ids(14)[5:300:7].copy()
    weight, scale = planes_for(store, len(ids))
    store.submit(14, ids, RowPlanes(weight=weight.ctypes.data, scale=scale.ctypes.data)).wait(10)
    assert np.array_equal(joined((weight, scale)), folder.tables[14][ids])


def test_repeats_are_read_once_and_neighbours_together(folder: PackedFolder) -> None:
    with open_folder(folder, max_pages_per_read=4, max_gap_pages=0) as store:
        before = store.counters()
        page_rows = folder.headers[1].rows_per_page
        ids = np.repeat(folder.owned_ids(1)[: 8 * page_rows], 3)
        store.read_rows(1, np.random.default_rng(0).permutation(ids))
        after = store.counters()
    assert after.missed_unique_rows - before.missed_unique_rows == 8 * page_rows
    assert after.pages - before.pages == 8
    assert after.reads - before.reads == 2


def test_small_gaps_are_read_through(folder: PackedFolder) -> None:
    with open_folder(folder, max_pages_per_read=4, max_gap_pages=1, self_test_blocks=0) as store:
        page_rows = folder.headers[1].rows_per_page
        ids = folder.owned_ids(1)[[0, 2 * page_rows, 5 * page_rows]]
        assert np.array_equal(joined(store.read_rows(1, ids)), folder.tables[1][ids])
        counters = store.counters()
    assert (counters.pages, counters.reads, counters.read_bytes) == (3, 2, 4 * 4096)


@pytest.mark.parametrize("backend", READING_BACKENDS)
def test_32_threads_at_once(folder: PackedFolder, backend: str) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(12):
                layer_id = int(rng.choice(store.layer_ids))
                ids = rng.choice(folder.owned_ids(layer_id), int(rng.integers(1, 600)))
                if not np.array_equal(joined(store.read_rows(layer_id, ids)), folder.tables[layer_id][ids]):
                    failures.append(f"wrong rows in thread {seed}")
        except EngramError as error:
            failures.append(error)

    with open_folder(folder, backend=backend, **CACHED) as store:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counters = store.counters()
    assert failures == []
    assert counters.reads_in_flight == 0
    assert counters.queued_requests == 0
    assert counters.hit_rows + counters.missed_rows == counters.rows


def test_counters_add_up(folder: PackedFolder) -> None:
    with open_folder(folder, cache_bytes=4_000_000) as store:
        ids = folder.owned_ids(1)[:500]
        store.read_rows(1, ids)
        first = store.counters()
        store.read_rows(1, ids)
        second = store.counters()
    assert second.hit_rows - first.hit_rows == 500
    assert second.pages == first.pages
    assert first.read_bytes >= first.pages * 4096
    assert second.request_latency.count == second.requests
    assert second.read_latency.count == second.reads
    assert 0 < second.read_latency.quantile_s(0.5) <= second.read_latency.quantile_s(0.99)


@pytest.mark.parametrize("backend", READING_BACKENDS)
def test_cancel_with_reads_in_flight(folder: PackedFolder, backend: str) -> None:
    """After cancel() returns, the caller's memory is never written again."""
    with open_folder(folder, backend=backend) as store:
        ids = np.random.default_rng(0).permutation(folder.owned_ids(1))
        for _ in range(20):
            weight, scale = planes_for(store, len(ids))
            ticket = store.submit(1, ids, RowPlanes(weight=weight, scale=scale))
            ticket.cancel()
            frozen = weight.copy()
            if ticket.done:
                try:
                    ticket.wait()
                except RequestCancelled:
                    time.sleep(0.002)
                    assert np.array_equal(weight, frozen)
        assert np.array_equal(joined(store.read_rows(1, ids)), folder.tables[1][ids])


def test_a_dropped_ticket_is_cancelled(folder: PackedFolder) -> None:
    with open_folder(folder) as store:
        ids = folder.owned_ids(1)
        weight, scale = planes_for(store, len(ids))
        store.submit(1, ids, RowPlanes(weight=weight, scale=scale))
        gc.collect()
        frozen = weight.copy()
        time.sleep(0.05)
        assert np.array_equal(weight, frozen)


@pytest.mark.parametrize("backend", READING_BACKENDS)
def test_close_with_reads_in_flight(folder: PackedFolder, backend: str) -> None:
    for _ in range(5):
        store = open_folder(folder, backend=backend, **CACHED)
        store.prefetch(1, 1, folder.owned_ids(1))
        ids = np.random.default_rng(0).permutation(folder.owned_ids(14))
        weight, scale = planes_for(store, len(ids))
        ticket = store.submit(14, ids, RowPlanes(weight=weight, scale=scale))
        store.close()
        try:
            ticket.wait(5)
            assert np.array_equal(joined((weight, scale)), folder.tables[14][ids])
        except RequestCancelled:
            pass
        with pytest.raises(RequestCancelled):
            store.read_rows(14, ids)
        store.close()


def test_wait_gives_up_and_can_be_repeated(folder: PackedFolder) -> None:
    script = _core.FaultScript()
    with open_folder(folder, seam=script, deadline_s=0.4, self_test_blocks=0) as store:
        script.add(result=_core.FaultScript.HANG)
        weight, scale = planes_for(store, 1)
        ticket = store.submit(1, folder.owned_ids(1)[:1], RowPlanes(weight=weight, scale=scale))
        with pytest.raises(WaitTimeout):
            ticket.wait(0.05)
        assert not ticket.done


def test_lookahead_priority_reads_the_same_rows(store: RowStore, folder: PackedFolder) -> None:
    ids = folder.owned_ids(1)[::3].copy()
    weight, scale = planes_for(store, len(ids))
    store.submit(1, ids, RowPlanes(weight=weight, scale=scale), Priority.LOOKAHEAD).wait(10)
    assert np.array_equal(joined((weight, scale)), folder.tables[1][ids])


def test_c_entry_reads_without_python(store: RowStore, folder: PackedFolder) -> None:
    import ctypes

    read_now = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
    )(_core.READ_NOW_ADDRESS)
    ids = np.ascontiguousarray(folder.owned_ids(14)[10:400:3])
    weight, scale = planes_for(store, len(ids))
    args = (store.reader_address(14), ids.ctypes.data, len(ids), weight.ctypes.data, scale.ctypes.data)
    assert read_now(*args) == 0
    assert np.array_equal(joined((weight, scale)), folder.tables[14][ids])
    ids[3] = -1
    assert read_now(*args) == -34  # ERANGE


def test_host_call_keeps_the_first_error(store: RowStore, folder: PackedFolder) -> None:
    import ctypes

    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_core.RUN_HOST_CALL_ADDRESS)
    ids = np.ascontiguousarray(folder.owned_ids(1)[:24])
    weight, scale = planes_for(store, len(ids))
    call = store.host_call(
        1,
        ids_address=ids.ctypes.data,
        num_ids=len(ids),
        weight_address=weight.ctypes.data,
        scale_address=scale.ctypes.data,
    )
    run(call.address)
    assert call.status == 0
    assert np.array_equal(joined((weight, scale)), folder.tables[1][ids])
    good = ids[5]
    ids[5] = 1 << 60
    run(call.address)
    ids[5] = good
    run(call.address)
    assert call.status == -34
    call.clear_status()
    run(call.address)
    assert call.status == 0


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Reading everything many times grows the process by the configured cache and little more."""
    import resource

    folder = write_packed_folder(tmp_path, column_sizes=(4001, 4003, 4007), layer_ids=(1,))
    with open_folder(folder, cache_bytes=500_000, self_test_blocks=0) as store:
        ids = folder.owned_ids(1)
        weight, scale = planes_for(store, len(ids))
        store.submit(1, ids, RowPlanes(weight=weight, scale=scale)).wait()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(20):
            store.submit(1, ids, RowPlanes(weight=weight, scale=scale)).wait()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 8 << 10

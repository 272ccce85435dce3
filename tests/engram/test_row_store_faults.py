"""Failing disks: every failed, short or late read is an error with file, offset and errno; never zeros."""

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

from engram import _core
from engram.errors import ReadError, ReadTimeoutError
from engram.row_source import RowPlanes
from engram.table_format import HEADER_BYTES, PAGE_BYTES
from tests.engram.packed_folder import PackedFolder, write_packed_folder
from tests.engram.test_row_store import READING_BACKENDS, joined, open_folder, planes_for

pytestmark = pytest.mark.parametrize("backend", READING_BACKENDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PackedFolder:
    return write_packed_folder(tmp_path_factory.mktemp("packed"), layer_ids=(1,))


@pytest.fixture
def script() -> _core.FaultScript:
    return _core.FaultScript()


def expect_place(error: ReadError, folder: PackedFolder) -> None:
    """The error of a read of the first row: its file, its page and an errno."""
    assert error.path == str(folder.files[0])
    assert error.offset_bytes == HEADER_BYTES
    assert error.errno


def test_an_io_error_names_file_offset_and_errno(folder: PackedFolder, script, backend: str) -> None:
    rows_per_page = folder.headers[1].rows_per_page
    bad_offset = HEADER_BYTES + 7 * PAGE_BYTES
    ids = folder.owned_ids(1)
    with open_folder(folder, backend=backend, seam=script, self_test_blocks=0, max_pages_per_read=1) as store:
        script.add(result=-errno.EIO, first_byte=bad_offset, end_byte=bad_offset + 1)
        with pytest.raises(ReadError) as caught:
            store.read_rows(1, ids)
        assert caught.value.errno == errno.EIO
        assert caught.value.offset_bytes == bad_offset
        assert caught.value.path == str(folder.files[0])
        assert "EIO" in str(caught.value) and str(bad_offset) in str(caught.value)
        # The fault was for once; the store goes on, and nothing wrong was cached.
        assert np.array_equal(joined(store.read_rows(1, ids)), folder.tables[1][ids])
        assert rows_per_page == 15
        assert store.counters().failed_reads == 1
        assert store.counters().failed_requests == 1


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_interrupted_reads_are_repeated(folder: PackedFolder, script, backend: str, code: int) -> None:
    script.add(result=-code, times=50)
    with open_folder(folder, backend=backend, seam=script) as store:
        ids = folder.owned_ids(1)
        assert np.array_equal(joined(store.read_rows(1, ids)), folder.tables[1][ids])
        assert store.counters().retried_reads == 50


@pytest.mark.parametrize("got_bytes", [PAGE_BYTES, 2 * PAGE_BYTES, PAGE_BYTES + 512])
def test_short_reads_are_continued(folder: PackedFolder, script, backend: str, got_bytes: int) -> None:
    with open_folder(folder, backend=backend, seam=script, self_test_blocks=0) as store:
        script.add(result=got_bytes, times=9)
        ids = folder.owned_ids(1)
        assert np.array_equal(joined(store.read_rows(1, ids)), folder.tables[1][ids])
        assert store.counters().retried_reads == 9


def test_reads_that_stay_short_fail(folder: PackedFolder, script, backend: str) -> None:
    with open_folder(folder, backend=backend, seam=script, self_test_blocks=0) as store:
        script.add(result=512, times=1000)
        with pytest.raises(ReadError, match="got 512 bytes") as caught:
            store.read_rows(1, folder.owned_ids(1)[:1])
        expect_place(caught.value, folder)


def test_the_end_of_the_file_is_an_error(folder: PackedFolder, script, backend: str) -> None:
    with open_folder(folder, backend=backend, seam=script, self_test_blocks=0) as store:
        script.add(result=0)
        with pytest.raises(ReadError, match="got 0 bytes") as caught:
            store.read_rows(1, folder.owned_ids(1)[:1])
        expect_place(caught.value, folder)


def test_a_file_truncated_under_a_running_reader(tmp_path: Path, backend: str) -> None:
    folder = write_packed_folder(tmp_path, layer_ids=(1,))
    rows_per_page = folder.headers[1].rows_per_page
    kept_pages = 10
    ids = folder.owned_ids(1)
    with open_folder(folder, backend=backend) as store:
        os.truncate(folder.files[0], HEADER_BYTES + kept_pages * PAGE_BYTES + 700)
        with pytest.raises(ReadError) as caught:
            store.read_rows(1, ids)
        assert caught.value.offset_bytes >= HEADER_BYTES + kept_pages * PAGE_BYTES
        kept = ids[: kept_pages * rows_per_page]
        assert np.array_equal(joined(store.read_rows(1, kept)), folder.tables[1][kept])


def test_a_hanging_read_misses_its_deadline(folder: PackedFolder, script, backend: str) -> None:
    with open_folder(folder, backend=backend, seam=script, self_test_blocks=0, deadline_s=0.2) as store:
        script.add(result=_core.FaultScript.HANG)
        started = time.monotonic()
        with pytest.raises(ReadTimeoutError) as caught:
            store.read_rows(1, folder.owned_ids(1)[:1])
        expect_place(caught.value, folder)
        assert caught.value.errno == errno.ETIMEDOUT
        assert 0.2 <= time.monotonic() - started < 60  # no deadline at all: forever
        assert store.counters().timed_out_reads == 1
        # One read hangs; the others go on.
        ids = folder.owned_ids(1)[100:200]
        assert np.array_equal(joined(store.read_rows(1, ids)), folder.tables[1][ids])


def test_a_device_that_hangs_altogether_fails_waiting_requests(
    folder: PackedFolder, script, backend: str
) -> None:
    options = {"queue_depth": 4, "deadline_s": 0.2, "max_pages_per_read": 1, "self_test_blocks": 0}
    with open_folder(folder, backend=backend, seam=script, **options) as store:
        script.add(result=_core.FaultScript.HANG, times=4)
        ids = folder.owned_ids(1)
        weight, scale = planes_for(store, len(ids))
        tickets = [store.submit(1, ids, RowPlanes(weight=weight, scale=scale)) for _ in range(3)]
        for ticket in tickets:
            with pytest.raises(ReadTimeoutError):
                ticket.wait(5)


def test_a_failed_look_ahead_is_no_error_of_the_request(folder: PackedFolder, script, backend: str) -> None:
    budget = {"lookahead_budget_bytes": 300_000}
    with open_folder(folder, backend=backend, seam=script, self_test_blocks=0, **budget) as store:
        script.add(result=-errno.EIO, times=5)
        ids = folder.owned_ids(1)
        store.prefetch(5, 1, ids)
        deadline = time.monotonic() + 5
        while script.applied < 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert script.applied >= 1
        script.add(result=-errno.EIO, times=0)
        for _ in range(3):
            try:
                rows = joined(store.read_rows(1, ids))
                break
            except ReadError:
                continue
        assert np.array_equal(rows, folder.tables[1][ids])

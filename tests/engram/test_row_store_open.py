"""Opening: only the very table that the caller expects, unharmed, may serve rows."""

import errno
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engram.errors import (
    BackendError,
    DiskError,
    EngramError,
    ReadError,
    TableFormatError,
    TableMismatchError,
)
from engram.row_store import open_row_store
from engram.self_test import Expected
from engram.store_options import StoreOptions
from engram.table_format import HEADER_BYTES, PAGE_BYTES, pack_header, parse_header
from tests.engram.packed_folder import REVISION, PackedFolder, paginate, write_packed_folder


@pytest.fixture
def folder(tmp_path: Path) -> PackedFolder:
    return write_packed_folder(tmp_path / "rank0", rank=0, tp=2)


def open_all(folder: PackedFolder, **options) -> None:
    open_row_store(folder.files, **({"allow_buffered": True, "self_test_blocks": 99} | options)).close()


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def test_the_expected_table_opens(folder: PackedFolder) -> None:
    total = len(folder.tables[1])
    open_all(
        folder,
        expect=Expected(rank=0, tp=2, source_revision=REVISION, layer_ids=(1, 14), total_rows=(total, total)),
    )


@pytest.mark.parametrize(
    ("expected", "field"),
    [
        (Expected(rank=1), "rank"),
        (Expected(tp=4), "tp"),
        (Expected(source_revision="d" * 40), "source_revision"),
        (Expected(layer_ids=(1, 2)), "layers"),
        (Expected(layer_ids=(14, 1)), "layers"),
        (Expected(layer_ids=(1, 14), total_rows=(1, 2)), "total_rows"),
        (Expected(total_rows=(1, 2)), "total_rows"),
    ],
)
def test_another_table_is_refused(folder: PackedFolder, expected: Expected, field: str) -> None:
    with pytest.raises(TableMismatchError, match=field):
        open_all(folder, expect=expected)


def test_files_of_two_ranks_are_refused(folder: PackedFolder, tmp_path: Path) -> None:
    other = write_packed_folder(tmp_path / "rank1", rank=1, tp=2)
    with pytest.raises(TableMismatchError, match="rank"):
        open_row_store([folder.files[0], other.files[1]], allow_buffered=True)


def test_the_same_layer_twice_is_refused(folder: PackedFolder) -> None:
    with pytest.raises(TableMismatchError, match="layers"):
        open_row_store([folder.files[0], folder.files[0]], allow_buffered=True)


def test_a_swapped_rank_file_is_refused(folder: PackedFolder, tmp_path: Path) -> None:
    """Rank 1's file under rank 0's name and with rank 0's manifest."""
    other = write_packed_folder(tmp_path / "rank1", rank=1, tp=2)
    shutil.copy(other.files[0], folder.files[0])
    with pytest.raises(TableMismatchError, match=r"rank|file name"):
        open_all(folder, expect=Expected(rank=0, tp=2))
    with pytest.raises(TableMismatchError):
        open_all(folder)


def test_rows_of_a_wrong_rank_under_a_right_header_are_refused(folder: PackedFolder) -> None:
    header = folder.headers[1]
    shifted = folder.tables[1][[*range(1, len(folder.tables[1])), 0]]
    folder.files[0].write_bytes(pack_header(header) + paginate(shifted, header))
    with pytest.raises(TableFormatError, match="checksum"):
        open_all(folder, self_test_blocks=1)


def test_a_stale_tp_is_refused(folder: PackedFolder, tmp_path: Path) -> None:
    """The manifest was written for TP 2; a file of TP 4 with a fitting name has no entry in it."""
    stale = write_packed_folder(tmp_path / "tp4", rank=0, tp=4)
    path = folder.directory / stale.files[0].name
    shutil.copy(stale.files[0], path)
    with pytest.raises(TableMismatchError, match=r"manifest\.json"):
        open_row_store([path], allow_buffered=True)


def test_a_file_of_another_revision_is_refused(folder: PackedFolder, tmp_path: Path) -> None:
    other = write_packed_folder(tmp_path / "other", rank=0, tp=2, revision="e" * 40)
    for mine, theirs in zip(folder.files, other.files, strict=True):
        shutil.copy(theirs, mine)
    with pytest.raises(TableMismatchError, match="source_revision"):
        open_all(folder)


@pytest.mark.parametrize("backend", ["io_uring", "threads", "ram"])
def test_any_flipped_bit_in_a_page_is_found(folder: PackedFolder, backend: str) -> None:
    size = folder.files[1].stat().st_size
    rng = random.Random(1)
    for _ in range(4):
        offset = rng.randrange(HEADER_BYTES, size)
        flip_bit(folder.files[1], offset)
        with pytest.raises(TableFormatError, match="checksum"):
            open_all(folder, backend=backend)
        flip_bit(folder.files[1], offset)
    open_all(folder, backend=backend)


def test_any_flipped_bit_in_the_header_is_found(folder: PackedFolder) -> None:
    rng = random.Random(2)
    for offset in (0, 8, 20, 24, 64, 80, 140, 260, 4070, *(rng.randrange(HEADER_BYTES) for _ in range(30))):
        flip_bit(folder.files[0], offset)
        with pytest.raises(EngramError):
            open_all(folder, self_test_blocks=0)
        flip_bit(folder.files[0], offset)
    open_all(folder)


@pytest.mark.parametrize("keep_bytes", [0, 100, HEADER_BYTES, HEADER_BYTES + 10 * PAGE_BYTES, -1])
def test_a_truncated_file_is_refused(folder: PackedFolder, keep_bytes: int) -> None:
    size = folder.files[0].stat().st_size
    with folder.files[0].open("r+b") as file:
        file.truncate(size + keep_bytes if keep_bytes < 0 else keep_bytes)
    with pytest.raises(TableFormatError):
        open_all(folder, self_test_blocks=0)


def test_a_missing_file_names_itself(folder: PackedFolder) -> None:
    folder.files[1].unlink()
    with pytest.raises(ReadError, match=folder.files[1].name) as caught:
        open_all(folder)
    assert caught.value.errno == 2
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "manifest.json"])
def test_a_fifo_is_refused_and_not_waited_for(folder: PackedFolder, name: str) -> None:
    path = folder.directory / (name or folder.files[1].name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TableFormatError, match=f"{path.name} must be a regular file, got a FIFO"):
        open_all(folder)


def test_a_missing_manifest_is_refused(folder: PackedFolder) -> None:
    (folder.directory / "manifest.json").unlink()
    with pytest.raises(TableFormatError, match=r"manifest\.json"):
        open_all(folder)


def test_memory_file_systems_need_allow_buffered() -> None:
    directory = Path("/dev/shm/engram-test-open")
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a tmpfs at /dev/shm")
    try:
        folder = write_packed_folder(directory)
        with pytest.raises(DiskError, match="O_DIRECT") as caught:
            open_row_store(folder.files)
        assert "allow_buffered" in caught.value.hint
        open_all(folder)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_no_silent_change_of_backend(folder: PackedFolder) -> None:
    """No descriptor left for the ring: an error that says so, not a quiet use of threads."""
    code = (
        "import os, resource, sys\n"
        "from engram.row_store import open_row_store\n"
        "free = max(int(fd) for fd in os.listdir('/proc/self/fd')) + len(sys.argv)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))\n"
        "open_row_store(sys.argv[1:], allow_buffered=True, self_test_blocks=0)\n"
    )
    command = [sys.executable, "-c", code, *map(str, folder.files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert BackendError.__name__ in done.stderr
    assert "EMFILE" in done.stderr


# Installs a seccomp filter that answers io_uring_setup with an errno, as container profiles (EPERM) and
# kernels without io_uring (ENOSYS) do; then opens the store with each backend.
REFUSE_URING = """
import ctypes, struct, sys
from engram.errors import BackendError
from engram.row_store import open_row_store
code, files = int(sys.argv[1]), sys.argv[2:]
IO_URING_SETUP, ALLOW, ERRNO = 425, 0x7FFF0000, 0x00050000
LOAD_NUMBER, IF_EQUAL, ANSWER = 0x20, 0x15, 0x06
program = b"".join(
    struct.pack("HBBI", *step)
    for step in [
        (LOAD_NUMBER, 0, 0, 0),
        (IF_EQUAL, 0, 1, IO_URING_SETUP),
        (ANSWER, 0, 0, ERRNO | code),
        (ANSWER, 0, 0, ALLOW),
    ]
)
steps = ctypes.create_string_buffer(program, len(program))
filter_ = struct.pack("HxxxxxxP", 4, ctypes.addressof(steps))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
assert libc.prctl(22, 2, ctypes.c_char_p(filter_)) == 0, "PR_SET_SECCOMP"
try:
    open_row_store(files, allow_buffered=True)
except BackendError as error:
    print(error, error.hint)
with open_row_store(files, allow_buffered=True, backend="threads") as store:
    print("opened with", store.options.backend)
"""


@pytest.mark.parametrize("name", ["EPERM", "ENOSYS"])
def test_refused_io_uring_is_an_error_and_threads_are_a_choice(folder: PackedFolder, name: str) -> None:
    command = [sys.executable, "-c", REFUSE_URING, str(getattr(errno, name)), *map(str, folder.files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    refusal, opened = done.stdout.splitlines()
    assert name in refusal
    assert "choose the backend named threads" in refusal
    assert opened == "opened with threads"


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="queue_depht"):
        StoreOptions.model_validate({"queue_depht": 64})
    with pytest.raises(ValueError, match="backend ram"):
        StoreOptions.model_validate({"backend": "ram", "cache_bytes": 1})


def test_both_languages_read_the_same_header(folder: PackedFolder) -> None:
    """The C++ twin parses the bytes that Python packs, field by field, and refuses what Python refuses."""
    with open_row_store(folder.files, allow_buffered=True, self_test_blocks=0) as store:
        for table, header in enumerate(folder.headers.values()):
            raw = store._native.header_bytes(table)
            assert raw == pack_header(header)
            assert parse_header(raw, "header") == header
            fields = store._native.header_fields(table)
            assert fields == {
                "layer_id": header.layer_id,
                "rank": header.rank,
                "tp": header.tp,
                "weight_bytes": header.weight_bytes,
                "scale_bytes": header.scale_bytes,
                "rows_per_page": header.rows_per_page,
                "num_rows": header.num_rows,
                "total_rows": header.total_rows,
                "file_bytes": header.file_bytes,
                "columns": [(c.column_idx, c.first_row, c.num_rows) for c in header.columns],
            }


def test_both_languages_refuse_the_same_headers(folder: PackedFolder) -> None:
    """A header that is wrong in one field, with a sound checksum, fails in the core as well."""
    import hashlib
    import struct

    raw = bytearray(folder.files[0].read_bytes()[:HEADER_BYTES])
    rest = folder.files[0].read_bytes()[HEADER_BYTES:]
    positions = {
        8: 2,
        12: 8192,
        20: 7,
        24: 3,
        28: 0,
        32: 0,
        36: 5000,
        40: 14,
        44: 8192,
        48: 1,
        56: 0,
        64: 99,
        256: 1,
    }
    for offset, value in positions.items():
        bad = bytearray(raw)
        struct.pack_into("<I", bad, offset, value)
        bad[-32:] = hashlib.sha256(bad[:-32]).digest()
        folder.files[0].write_bytes(bytes(bad) + rest)
        with pytest.raises(TableFormatError):
            parse_header(bytes(bad), "header")
        with pytest.raises(TableFormatError, match=folder.files[0].name):
            open_all(folder, self_test_blocks=0)


def test_sampled_blocks_differ_between_opens(folder: PackedFolder) -> None:
    """Not a fixed sample: over many opens every block gets its turn."""
    header = replace(folder.headers[1])
    assert header.file_bytes > HEADER_BYTES
    flip_bit(folder.files[0], header.file_bytes - 10)
    found = 0
    for seed in range(20):
        try:
            open_all(folder, self_test_blocks=1, rng=random.Random(seed))
        except TableFormatError:
            found += 1
    assert found > 0

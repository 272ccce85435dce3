"""Disks that are full, small, slow to tell, or without O_DIRECT."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engram import direct_file
from engram.direct_file import AlignedBuffer, DirectFile
from engram.errors import DiskError, PackError
from engram.pack_table import SPARE_BYTES
from engram.verify_table import VerifyRequest, verify_tables
from tests.engram.test_pack_table import expect_checkpoint_bytes, pack
from tests.engram.tiny_checkpoint import TinyCheckpoint, build_checkpoint, scaled_config


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """Two layers of 5 MB."""
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"), scaled_config(vocab_size=6000))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 72 MiB: room for the spare bytes and one layer, not for both."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    target = tmp_path / "disk"
    target.mkdir()
    size = SPARE_BYTES + (8 << 20)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(target)], check=False)
    if done.returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_no_room_is_refused_with_both_numbers_before_anything_is_written(
    tiny: TinyCheckpoint, small_disk: Path
) -> None:
    stat = os.statvfs(small_disk)
    with pytest.raises(PackError, match=r"free space must be (\d+) bytes .* got (\d+) bytes") as caught:
        pack(tiny, small_disk)
    numbers = [int(word) for word in str(caught.value).split() if word.isdigit()]
    # Two layers of 33-byte rows in pages of 124.
    assert numbers[0] > SPARE_BYTES + sum(len(rows) for rows in tiny.weights.values()) * 33
    assert numbers[1] == pytest.approx(stat.f_bavail * stat.f_frsize, abs=8192)
    assert [path.name for path in small_disk.iterdir()] == [".pack.lock"]
    pack(tiny, small_disk, layer_ids=(1,))


def test_finished_tables_need_no_more_room(tiny: TinyCheckpoint, small_disk: Path) -> None:
    first = pack(tiny, small_disk, layer_ids=(1,))
    with (small_disk / "ballast").open("wb") as file:
        stat = os.statvfs(small_disk)
        os.posix_fallocate(file.fileno(), 0, stat.f_bavail * stat.f_frsize)
    again = pack(tiny, small_disk, layer_ids=(1,))
    assert (again.packed_bytes, again.skipped_bytes) == (0, first.packed_bytes)


def test_disk_filled_by_others_while_packing_can_be_resumed(
    tiny: TinyCheckpoint, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check passed, then someone else took the space: reserving it fails, and says so."""
    real, ballast = os.posix_fallocate, small_disk / "ballast"

    def fill_first(fd: int, offset: int, num_bytes: int) -> None:
        with ballast.open("wb") as file:
            real(file.fileno(), 0, SPARE_BYTES + (4 << 20))
        real(fd, offset, num_bytes)

    monkeypatch.setattr(os, "posix_fallocate", fill_first)
    with pytest.raises(DiskError, match="reserve space must succeed, got ENOSPC") as caught:
        pack(tiny, small_disk, layer_ids=(1,))
    assert "free space" in caught.value.hint
    monkeypatch.undo()
    ballast.unlink()
    pack(tiny, small_disk, layer_ids=(1,))
    assert not list(small_disk.glob("*.partial"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failed_write_stops_and_can_be_resumed(
    tiny: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real, left = os.pwritev, [4]

    def fail_later(fd: int, buffers: list[memoryview], offset: int) -> int:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(code, os.strerror(code))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", fail_later)
    with pytest.raises(DiskError, match=rf"write must succeed at byte \d+, got {errno.errorcode[code]}"):
        pack(tiny, tmp_path, sync_bytes=1 << 20, workers=1)
    assert not list(tmp_path.glob("*.engram"))
    monkeypatch.undo()
    assert pack(tiny, tmp_path).skipped_bytes > 0
    expect_checkpoint_bytes(tiny, tmp_path, 1)


def test_short_writes_and_reads_are_continued(
    tiny: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may end a large transfer early, at a whole block."""
    write, read = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: write(fd, [views[0][:65536]], at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:65536]], at))
    pack(tiny, tmp_path)
    monkeypatch.undo()
    expect_checkpoint_bytes(tiny, tmp_path, 1)


def test_failed_read_names_file_and_offset(
    tiny: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(DiskError, match=r"read must succeed at byte \d+, got EIO.*model-0000") as caught:
        pack(tiny, tmp_path)
    assert "smart-log" in caught.value.hint


@pytest.fixture
def no_direct_io(monkeypatch: pytest.MonkeyPatch) -> None:
    """As overlayfs and older tmpfs answer."""
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, mode)

    monkeypatch.setattr(direct_file.os, "open", refuse)


@pytest.mark.usefixtures("no_direct_io")
def test_filesystem_without_direct_io_is_refused_or_named_in_the_report(
    tiny: TinyCheckpoint, tmp_path: Path
) -> None:
    with pytest.raises(DiskError, match="must allow O_DIRECT, got a refusal") as caught:
        pack(tiny, tmp_path, allow_buffered=False)
    assert "--allow-buffered" in caught.value.hint
    assert not pack(tiny, tmp_path, allow_buffered=True).is_direct
    expect_checkpoint_bytes(tiny, tmp_path, 1)


def test_filesystem_in_memory_is_refused_or_named_in_the_report(
    tiny: TinyCheckpoint, small_disk: Path
) -> None:
    """tmpfs accepts O_DIRECT since Linux 6.6; the row store would refuse the packed files only later."""
    with pytest.raises(DiskError, match="must allow O_DIRECT, got one that keeps files in memory") as caught:
        pack(tiny, small_disk, layer_ids=(1,), allow_buffered=False)
    assert "--allow-buffered" in caught.value.hint
    assert [path.name for path in small_disk.iterdir()] == [".pack.lock"]
    assert not pack(tiny, small_disk, layer_ids=(1,)).is_direct
    verify_tables(VerifyRequest(directory=small_disk, full=True, allow_buffered=True))


@pytest.mark.nvme
def test_direct_io_is_used_where_the_disk_has_it(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    assert pack(tiny, tmp_path, allow_buffered=False).is_direct
    expect_checkpoint_bytes(tiny, tmp_path, 1)


def test_folder_that_cannot_be_made_is_named(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="create the folder must succeed, got ENOTDIR"):
        pack(tiny, tmp_path / "file" / "tables")


def test_unaligned_ranges_read_exactly(tmp_path: Path) -> None:
    content = bytes(range(256)) * 64
    (tmp_path / "x").write_bytes(content[:-7])
    buffer = AlignedBuffer(len(content) + 8192)
    with DirectFile(tmp_path / "x", os.O_RDONLY, allow_buffered=True) as file:
        for offset, num_bytes in ((0, 1), (4095, 2), (5, 9000), (16370, 7), (0, 16377)):
            assert file.read_range(buffer, offset, num_bytes) == content[offset : offset + num_bytes]
        with pytest.raises(DiskError, match="must give 8 bytes at byte 16370, got 7"):
            file.read_range(buffer, 16370, 8)

"""Large sequential reads and writes past the page cache (O_DIRECT), with every failure named."""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from engram.errors import DiskError

# O_DIRECT wants offsets, sizes and memory aligned to the drive's logical block: 512 or 4096 bytes.
ALIGNMENT_BYTES: Final = 4096
# f_type of overlayfs, tmpfs and ramfs, as in engram/core/file_handle.cpp.
_IN_MEMORY: Final = frozenset({0x794C7630, 0x01021994, 0x858458F6})
_libc: Final = ctypes.CDLL(None, use_errno=True)


@contextmanager
def naming_disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turns OSError into DiskError: `action` is what was tried ("create", "rename")."""
    try:
        yield
    except OSError as error:
        raise disk_error(action, path, error) from error


def disk_error(action: str, path: Path, error: OSError, *, offset_bytes: int | None = None) -> DiskError:
    at = "" if offset_bytes is None else f" at byte {offset_bytes}"
    code = errno.errorcode.get(error.errno or 0, str(error.errno))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free space on this disk, then run the same command again: it goes on where it stopped"
    elif error.errno == errno.EIO:
        hint = "the drive reported an error; look at: dmesg and nvme smart-log"
    else:
        hint = "check that the folder exists, that its disk is mounted and that you may write to it"
    return DiskError(
        f"{action} must succeed{at}, got {code}: {os.strerror(error.errno or 0)} ({path}).", hint=hint
    )


class AlignedBuffer:
    """Page-aligned anonymous memory, zeroed. The view stays valid as long as the buffer is referenced."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = mmap.mmap(-1, _round_up(num_bytes))
        self.view = memoryview(self._memory)


class DirectFile:
    """One open file; offsets are explicit, so that threads may share it. Blocks; raises DiskError."""

    def __init__(self, path: Path, flags: int, *, allow_buffered: bool = False) -> None:
        self.path = path
        refusal = "one that keeps files in memory" if _keeps_files_in_memory(path) else ""
        if not refusal:
            try:
                self.fd = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise disk_error("open", path, error) from error
                refusal = "a refusal"
        self.is_direct = not refusal
        if self.is_direct:
            return
        if not allow_buffered:
            raise DiskError(
                f"the filesystem must allow O_DIRECT, got {refusal} ({path}).",
                hint="use a local ext4 or xfs disk, or pass --allow-buffered to use the page cache",
            )
        with naming_disk_errors("open", path):
            self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def read_range(self, buffer: AlignedBuffer, offset_bytes: int, num_bytes: int) -> memoryview:
        """A view of exactly these bytes inside the buffer, which must have two alignment units to spare."""
        start = offset_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        skip = offset_bytes - start
        target = buffer.view[: _round_up(skip + num_bytes)]
        have = 0
        while have < skip + num_bytes:
            try:
                got = os.preadv(self.fd, [target[have:]], start + have)
            except OSError as error:
                raise disk_error("read", self.path, error, offset_bytes=start + have) from error
            have += got
            # A direct read ends off the alignment only at the end of the file.
            if got == 0 or (have % ALIGNMENT_BYTES and have < skip + num_bytes):
                raise DiskError(
                    f"read must give {num_bytes} bytes at byte {offset_bytes}, "
                    f"got {max(0, have - skip)} ({self.path}).",
                    hint="the file is shorter than it was; restore it, then run the command again",
                )
        return target[skip : skip + num_bytes]

    def write_at(self, data: memoryview, offset_bytes: int) -> None:
        """`data` must be aligned memory of aligned size, `offset_bytes` aligned."""
        done = 0
        while done < len(data):
            try:
                done += os.pwritev(self.fd, [data[done:]], offset_bytes + done)
            except OSError as error:
                raise disk_error("write", self.path, error, offset_bytes=offset_bytes + done) from error

    def sync(self) -> None:
        """Data on the disk when this returns; a buffered file leaves the page cache too."""
        with naming_disk_errors("fdatasync", self.path):
            os.fdatasync(self.fd)
        if not self.is_direct:
            self.drop_cache()

    def drop_cache(self) -> None:
        """A 100 GB pass must not push everything else out of the page cache."""
        if not self.is_direct:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _keeps_files_in_memory(path: Path) -> bool:
    """Newer kernels accept O_DIRECT there and go through memory all the same.

    Asks the folder, so that a refusal creates no file; one that is missing is left to open() to name.
    """
    statfs = (ctypes.c_long * 64)()  # f_type comes first; the structure takes 120 bytes
    folder = path.resolve().parent
    return _libc.statfs(os.fsencode(folder), statfs) == 0 and statfs[0] in _IN_MEMORY


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

"""Turns the faults that the C++ core reports (errno and place) into errors for people."""

import errno
import os

from engram.errors import (
    BackendError,
    DiskError,
    EngramError,
    ReadError,
    ReadTimeoutError,
    RequestCancelled,
    RowIdError,
    TableFormatError,
    WaitTimeout,
)


def make_read_error(
    path: str, offset_bytes: int, code: int, wanted_bytes: int, got_bytes: int
) -> EngramError:
    if code == errno.ECANCELED:
        return RequestCancelled(
            f"the read must run to its end, got cancelled ({path}).",
            hint="the ticket was cancelled or the store was closed; submit the rows again",
        )
    place = f"{path}, byte {offset_bytes}"
    name = errno.errorcode.get(code, str(code))
    if code == errno.ETIMEDOUT:
        return ReadTimeoutError(
            f"a read of {wanted_bytes} bytes must end before its deadline, got {name} ({place}).",
            hint="the drive hangs or is overloaded; look at: dmesg and nvme smart-log; or raise deadline_s",
            path=path,
            offset_bytes=offset_bytes,
            errno=code,
        )
    seen = f"{got_bytes} bytes, {name}: {os.strerror(code)}"
    return ReadError(
        f"a read must give {wanted_bytes} bytes, got {seen} ({place}).",
        hint="the file was truncated or the drive fails; look at: dmesg; then: sparkctl engram verify --full",
        path=path,
        offset_bytes=offset_bytes,
        errno=code,
    )


def make_open_error(path: str, text: str, code: int, needs_allow_buffered: bool) -> EngramError:
    if needs_allow_buffered:
        return DiskError(
            f"{text}, got a refusal or a file system that keeps files in memory ({path}).",
            hint="use a local ext4 or xfs disk, or set allow_buffered to read through the page cache",
        )
    name = f"{errno.errorcode.get(code, code)}: {os.strerror(code)}"
    if path and code:
        return ReadError(
            f"the packed table must open, got {name} ({path}).",
            hint="check that the file exists and that you may read it",
            path=path,
            errno=code,
        )
    if path:
        return TableFormatError(
            f"{text} ({path}).",
            hint="the file is damaged or of another version; pack again: sparkctl engram pack --restart",
        )
    return BackendError(f"{text} must succeed, got {name}.", hint=_backend_hint(code))


def _backend_hint(code: int) -> str:
    if code == errno.ENOMEM:
        return "raise the locked-memory limit (ulimit -l 65536), or lower queue_depth or cache_bytes"
    if code in (errno.EPERM, errno.ENOSYS):
        return (
            "io_uring is switched off (sysctl kernel.io_uring_disabled, container seccomp profile) or the "
            "kernel is older than 5.11; allow it, or choose the backend named threads"
        )
    return "choose the backend named threads"


def make_row_id_error(row_id: int, position: int, path: str) -> RowIdError:
    return RowIdError(
        f"row ids must be of columns in this file, got {row_id} at position {position} ({path}).",
        hint="rank, TP or hash of the caller differ from the packed table's; compare: sparkctl engram verify",
    )


def make_wait_timeout(timeout_s: float) -> WaitTimeout:
    return WaitTimeout(
        f"the rows must arrive within {timeout_s} s, got some of them only (this ticket).",
        hint="wait again, or cancel the ticket before its memory is used for something else",
    )

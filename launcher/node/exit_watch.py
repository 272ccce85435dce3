"""Learn that a process that is not our child ended, and how.

pidfd_open tells that it ended, at once. Its exit status is kept by the kernel for the holder of a pidfd
(PIDFD_GET_INFO with PIDFD_INFO_EXIT, Linux 6.15 or newer); older kernels show it only while the parent has
not reaped it (field 52 of /proc/PID/stat).
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from pathlib import Path
from typing import Any

# include/uapi/linux/pidfd.h: PIDFD_GET_INFO = _IOWR(0xFF, 11, struct pidfd_info), first published size 64.
_PIDFD_INFO_SIZE = 64
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO_SIZE << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


class ExitWatch:
    """Watches one process. `poll()` is cheap enough for each tick."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def poll(self) -> bool:
        """True once it ended."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(0))

    def wait_status(self) -> int | None:
        """Its wait status as waitpid would give it; None when the kernel does not tell."""
        request = bytearray(struct.pack("<Q", _PIDFD_INFO_EXIT) + bytes(_PIDFD_INFO_SIZE - 8))
        try:
            fcntl.ioctl(self._fd, _PIDFD_GET_INFO, request)
        except OSError:
            return self._zombie_status()
        (mask,) = struct.unpack_from("<Q", request, 0)
        if mask & _PIDFD_INFO_EXIT:
            # mask u64, cgroupid u64, pid tgid ppid ruid rgid euid egid suid sgid fsuid fsgid u32,
            # exit_code i32
            return int(struct.unpack_from("<i", request, 16 + 11 * 4)[0])
        return self._zombie_status()

    def _zombie_status(self) -> int | None:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            return None
        return int(fields[49]) if fields[0] in "ZX" else None

    def close(self) -> None:
        os.close(self._fd)


def describe_wait_status(status: int | None) -> dict[str, Any]:
    """`{"exit_code": 1}`, `{"signal": 9}`, or `{}` when unknown."""
    if status is None:
        return {}
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"exit_code": os.WEXITSTATUS(status)}

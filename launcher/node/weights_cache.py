"""Page cache of weights: on unified memory it takes what the KV pool wants, so it is dropped behind us."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_manifest import place
from launcher.node.weights_scan import scan

# Often enough to keep the cache small, seldom enough to cost nothing.
STEP_BYTES = 64 << 20


class TrailingDrop:
    """Drops the part of files that every reader has passed. One for a whole push; safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[str, Any] = {}  # name -> {reader: position}
        self._dropped: dict[str, Any] = {}

    def moved(self, name: str, reader: object, fd: int, position: int) -> None:
        with self._lock:
            readers = self._positions.setdefault(name, {})
            readers[reader] = position
            end = min(readers.values())
            begin = min(self._dropped.get(name, 0), end)
            if end - begin < STEP_BYTES:
                return
            self._dropped[name] = end
        os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_DONTNEED)

    def left(self, name: str, reader: object, fd: int) -> None:
        with self._lock:
            readers = self._positions.get(name, {})
            readers.pop(reader, None)
            if readers:
                return
            self._dropped[name] = 0
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def weights_drop_cache(*, models: str, model_path: str) -> None:
    """{"done": {"num_files", "total_bytes", "cached_before_bytes", "cached_after_bytes"}}."""
    directory = place(models, model_path)
    found = scan(directory)
    before = _cached_bytes()
    for name in found:
        drop_file(directory / name)
    answer(
        {
            "done": {
                "num_files": len(found),
                "total_bytes": sum(status.st_size for status in found.values()),
                "cached_before_bytes": before,
                "cached_after_bytes": _cached_bytes(),
            }
        }
    )


def drop_file(path: Path) -> None:
    """Written back first: dirty pages cannot be dropped."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{path} must be readable, got: {error.strerror}.") from error
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _cached_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Cached:"):
            return int(line.split()[1]) << 10
    raise Refused("/proc/meminfo must have a line Cached:, got none.")

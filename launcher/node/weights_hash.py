"""sha256 of files, several at once: hashlib lets go of the GIL, so threads use the cores."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused
from launcher.node.weights_manifest import stamp_of

# Large reads keep an NVMe disk busy; larger ones gained nothing that was seen.
BLOCK_BYTES = 4 << 20
# More would make a disk seek between streams without filling more cores.
MAX_THREADS = 8


def hash_file(path: Path, on_bytes: Callable[[int], None] = lambda num_bytes: None) -> tuple[Any, ...]:
    """(sha256, stamp). What was read is dropped from the page cache as it goes: nobody needs it twice.

    Raises Refused when the file changes while it is read.
    """
    digest = hashlib.sha256()
    buffer = bytearray(BLOCK_BYTES)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            position = 0
            while count := file.readinto(buffer):
                digest.update(view[:count])
                os.posix_fadvise(file.fileno(), position, count, os.POSIX_FADV_DONTNEED)
                position += count
                on_bytes(count)
            after = os.fstat(file.fileno())
    except OSError as error:
        raise Refused(
            f"{path} must be readable, got: {error.strerror}.", "look at the disk: dmesg -T"
        ) from error
    if position != before.st_size or stamp_of(before) != stamp_of(after) or before.st_size != after.st_size:
        raise Refused(
            f"{path} must stay as it is while it is read, got a change.",
            "wait until whatever writes it has ended, then repeat",
        )
    return digest.hexdigest(), stamp_of(after)


def hash_files(paths: Mapping[str, Path], on_bytes: Callable[[int], None]) -> dict[str, Any]:
    """name -> (sha256, stamp), or the Refused that stands for it. Largest first."""
    found: dict[str, Any] = {}

    def one(name: str) -> None:
        try:
            found[name] = hash_file(paths[name], on_bytes)
        except Refused as refusal:
            found[name] = refusal

    in_threads(
        sorted(paths, key=lambda name: -_size(paths[name])), one, min(MAX_THREADS, os.cpu_count() or 1)
    )
    return found


def in_threads(items: Iterable[Any], work: Callable[[Any], None], num_threads: int) -> None:
    """`work` for every item; the first exception stops the rest and is raised."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    failures: list[Any] = []

    def take() -> None:
        while not failures:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # hash_file tells why
        return 0

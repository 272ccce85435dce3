"""A receiving node: takes what is missing from the source in several streams, hashing as it comes.

A file grows as `.NAME.sparkctl-partial`; only when its sha256 is right is it renamed, and only when every
file is here does the manifest say complete. What a killed push left is hashed again and continued.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_hash import BLOCK_BYTES, in_threads
from launcher.node.weights_link import link
from launcher.node.weights_manifest import (
    partial_path,
    place,
    stamp_of,
    sync_directory,
    write_manifest,
)
from launcher.node.weights_prepare import (
    directory_lock,
    make_directory,
    missing_files,
    open_manifest,
    save_manifest,
)
from launcher.node.weights_report import Report
from launcher.node.weights_wire import (
    SILENCE_S,
    UNCHANGED,
    answer_greeting,
    receive_exactly,
    receive_message,
    send_message,
    set_silence,
)

CONNECT_S = 10.0
# recv, sha256 and write of a block stay in the caches of a core.
RECEIVE_BYTES = 1 << 20
# Written back in steps of this, so that a push neither fills memory with dirty pages nor ends in a long sync.
FLUSH_BYTES = 128 << 20


def weights_receive(
    *,
    models: str,
    model_path: str,
    files: dict[str, Any],
    origin: dict[str, Any],
    left_out: list[str],
    whole: dict[str, Any],
    source: str,
    address: str,
    port: int,
    token: str,
    num_streams: int,
) -> None:
    """`source` is a name for messages. Last line: {"done": {"received_bytes": n, "num_received": n}}."""
    directory = place(models, model_path)
    make_directory(directory)
    with directory_lock(directory):
        manifest = open_manifest(directory, files, origin, left_out, whole)
        missing = missing_files(directory, manifest["files"])
        received = _Receiver(directory, manifest, models, source, (address, port), token).receive(
            missing, num_streams
        )
        manifest["complete"] = True
        save_manifest(directory, manifest)
    answer({"done": {"received_bytes": received, "num_received": len(missing)}})


class _Receiver:
    def __init__(
        self,
        directory: Path,
        manifest: dict[str, Any],
        models: str,
        source: str,
        address: tuple[Any, ...],
        token: str,
    ) -> None:
        self._directory = directory
        self._manifest = manifest
        self._files = manifest["files"]
        self._source = source
        self._address = address
        self._token = token
        self._where = f"{source} at {address[0]}:{address[1]}"
        self._lock = threading.Lock()
        self._local = threading.local()
        self._flusher = _Flusher()
        self._received_bytes = 0

    def receive(self, missing: list[str], num_streams: int) -> int:
        by_hash: dict[str, Any] = {}
        for name in missing:
            by_hash.setdefault(self._files[name]["sha256"], []).append(name)
        groups = sorted(by_hash.values(), key=lambda names: -self._files[names[0]]["size_bytes"])
        total = sum(self._files[names[0]]["size_bytes"] for names in groups)
        with Report("receive", total) as report:
            self._report = report
            in_threads(groups, self._receive_group, max(1, num_streams))
        return self._received_bytes

    def _receive_group(self, names: list[str]) -> None:
        """Files of equal content cross the fabric once."""
        first, *others = names
        try:
            self._receive_file(first)
            for name in others:
                self._copy(first, name)
        except OSError as error:
            raise self._disk_problem(first, error) from error

    def _receive_file(self, name: str) -> None:
        entry, partial = self._files[name], partial_path(self._directory, name)
        partial.parent.mkdir(parents=True, exist_ok=True)
        resumed, seen = self._try(name, entry, partial)
        if seen != entry["sha256"] and resumed:
            # What an earlier push left does not belong to this file: once more from the start.
            partial.unlink()
            self._report.add(-entry["size_bytes"])
            _, seen = self._try(name, entry, partial)
        if seen != entry["sha256"]:
            partial.unlink()
            raise Refused(
                f"{name} must arrive with sha256 {entry['sha256'][:16]}..., got {seen[:16]}... "
                f"(from {self._where}).",
                f"a disk or memory changed it: sparkctl weights verify, and look at {self._source}",
            )
        target = self._directory / name
        partial.replace(target)
        sync_directory(target.parent)
        self._vouch(name, target)

    def _try(self, name: str, entry: dict[str, Any], partial: Path) -> tuple[Any, ...]:
        """(bytes kept from an earlier push, sha256). The partial file is whole and synced afterwards."""
        digest = hashlib.sha256()
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            resumed = self._resume(fd, entry["size_bytes"], digest)
            if resumed < entry["size_bytes"]:
                self._pull(name, fd, resumed, entry["size_bytes"], digest)
            os.fsync(fd)
            self._flusher.check()
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        return resumed, digest.hexdigest()

    def _resume(self, fd: int, size: int, digest: Any) -> int:
        kept = os.fstat(fd).st_size
        if kept > size:
            os.ftruncate(fd, 0)
            return 0
        position = 0
        while position < kept:
            block = os.pread(fd, min(BLOCK_BYTES, kept - position), position)
            digest.update(block)
            position += len(block)
            self._report.add(len(block))
        return kept

    def _pull(self, name: str, fd: int, offset: int, size: int, digest: Any) -> None:
        try:
            connection = self._connection()
            send_message(connection, {"name": name, "offset": offset})
            said = receive_message(connection)
            if said is None:
                raise ConnectionError("the end of the connection")
        except OSError as error:
            raise self._peer_problem(error) from error
        if "error" in said:
            raise Refused(f"{self._source} must send {name}, got a refusal: {said['error']}.", VERIFY_HINT)
        if said.get("num_bytes") != size - offset:
            text = f"{self._where} must send {size - offset} bytes of {name}, got {said!r:.80}."
            raise Refused(text, VERIFY_HINT)
        self._take(connection, fd, offset, size, digest)
        try:
            is_same = receive_exactly(connection, 1) == UNCHANGED
        except OSError as error:
            raise self._peer_problem(error) from error
        if not is_same:
            os.ftruncate(fd, 0)
            raise Refused(
                f"{name} must stay as it is while it is copied, got a change on {self._source}.",
                "wait until whatever writes it has ended, then repeat; if the new content is wanted: "
                "sparkctl weights fetch --from DIR",
            )

    def _take(self, connection: socket.socket, fd: int, offset: int, size: int, digest: Any) -> None:
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        flushed = offset
        while offset < size:
            try:
                count = connection.recv_into(buffer, min(RECEIVE_BYTES, size - offset), socket.MSG_WAITALL)
            except OSError as error:
                raise self._peer_problem(error) from error
            if not count:
                raise self._peer_problem(ConnectionError("the end of the connection"))
            block = buffer[:count]
            digest.update(block)
            _write_all(fd, block, offset)
            offset += count
            self._report.add(count)
            with self._lock:
                self._received_bytes += count
            if offset - flushed >= FLUSH_BYTES:
                flushed = offset
                self._flusher.flush(fd)

    def _connection(self) -> socket.socket:
        """One a stream, kept for all of its files."""
        known = getattr(self._local, "connection", None)
        if known is None:
            known = socket.create_connection(self._address, timeout=CONNECT_S)
            set_silence(known)
            answer_greeting(known, self._token)
            self._local.connection = known
        return known

    def _copy(self, first: str, name: str) -> None:
        sha256 = self._files[name]["sha256"]
        stamp = link(self._directory / first, self._directory, name, sha256, trusted=True, on_bytes=_nobody)
        if stamp is None:
            self._receive_file(name)
        else:
            self._vouch(name, self._directory / name)

    def _vouch(self, name: str, target: Path) -> None:
        with self._lock:
            self._files[name]["stamp"] = stamp_of(target.stat())
            write_manifest(self._directory, self._manifest)

    def _peer_problem(self, error: OSError) -> Refused:
        if isinstance(error, BlockingIOError):
            seen, hint = f"nothing for {SILENCE_S} s", "look at the source and its cable: sparkctl doctor"
        elif isinstance(error, TimeoutError):
            seen = f"no connection within {CONNECT_S:.0f} s"
            hint = "a firewall between the nodes or a wrong fabric.address: sparkctl doctor; sudo ufw status"
        else:
            seen, hint = str(error.strerror or error), "repeat the push: what is here is kept"
        return Refused(f"The source must send its files, got {seen} ({self._where}).", hint)

    def _disk_problem(self, name: str, error: OSError) -> Refused:
        seen = f"{error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with suppress(OSError):
                disk = os.statvfs(self._directory)
                free = disk.f_bavail * disk.f_frsize
                seen += f": {free} bytes free, {name} has {self._files[name]['size_bytes']}"
        return Refused(
            f"{self._directory} must take {name}, got {seen}.",
            f"make room (df -h {self._directory}), then repeat the push: what is here is kept",
        )


VERIFY_HINT = "look at the source's copy: sparkctl weights verify"


class _Flusher:
    """Writes files back in a thread of its own, so that no stream waits for the disk before its end."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._failure: OSError | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def flush(self, fd: int) -> None:
        """What `fd` has now; on a descriptor of its own, since the stream may close its first."""
        self._waiting.put(os.dup(fd))

    def check(self) -> None:
        """Raises what writing back met: the kernel tells an error once, and a later fsync would not."""
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while True:
            fd = self._waiting.get()
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                self._failure = error
            finally:
                os.close(fd)


def _write_all(fd: int, block: memoryview, offset: int) -> None:
    while block:
        count = os.pwrite(fd, block, offset)
        block, offset = block[count:], offset + count


def _nobody(num_bytes: int) -> None:
    pass

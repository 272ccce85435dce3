"""The source of a push: serves its files on its fabric address until the launcher hangs up."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_cache import STEP_BYTES, TrailingDrop
from launcher.node.weights_manifest import need_manifest, place, stamp_of
from launcher.node.weights_report import end_with_launcher
from launcher.node.weights_subset import INDEX_NAME, subset
from launcher.node.weights_wire import (
    CHANGED,
    UNCHANGED,
    greet,
    receive_message,
    send_message,
    set_silence,
)

GREETING_S = 5
MAX_CONNECTIONS = 64
SENDFILE_BYTES = 8 << 20
# A launcher that vanished without a word must not leave this listening for ever. Receivers that go on with a
# partial file hash it first, for minutes.
IDLE_S = 900
NUM_OWN_THREADS = 2  # this one, and the one that waits for the launcher's end


def weights_serve(
    *, models: str, model_path: str, leave_out: list[str], address: str, tokens: list[str]
) -> None:
    """First line: {"listening": port}. Ends with the launcher's end of stdin."""
    directory = place(models, model_path)
    manifest = need_manifest(directory)
    source = _Source(directory, manifest["files"], leave_out)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise Refused(
            f"The source must listen on its fabric address {address}, got: {error.strerror}.",
            "compare fabric.address of this node in the topology with: ip -br addr",
        ) from error
    with listener:
        end_with_launcher()
        answer({"listening": listener.getsockname()[1]})
        listener.settimeout(IDLE_S)
        places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if threading.active_count() > NUM_OWN_THREADS:
                    continue
                raise Refused(
                    f"Receivers must connect within {IDLE_S} s, got none.", "repeat the push"
                ) from None
            places.acquire()
            threading.Thread(target=_serve, args=(connection, source, tokens, places), daemon=True).start()


class _Source:
    """Files by name, opened as the manifest knows them; the rewritten index lives in memory."""

    def __init__(self, directory: Path, files: dict[str, Any], leave_out: list[str]) -> None:
        self.drop = TrailingDrop()
        self._directory = directory
        self._files = files
        dropped, index = subset(directory, leave_out)
        self._names = set(files) - dropped
        self._index = index if dropped else None

    def open(self, name: str) -> tuple[Any, ...]:
        """(fd, size). Raises Refused."""
        if name not in self._names:
            raise Refused(f"{name!r:.80} is not on the list")
        if name == INDEX_NAME and self._index is not None:
            fd = os.memfd_create("index")
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(self._index)
            return fd, len(self._index)
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"{name} cannot be read: {error.strerror}") from error
        if not self.is_same(name, fd):
            os.close(fd)
            raise Refused(f"{name} changed since it was hashed")
        return fd, self._files[name]["size_bytes"]

    def is_same(self, name: str, fd: int) -> bool:
        """Neither this open file nor what its name leads to is another than the hashed one."""
        if name == INDEX_NAME and self._index is not None:
            return True
        entry = self._files[name]
        try:
            both = (os.fstat(fd), (self._directory / name).stat())
        except OSError:
            return False
        return all(s.st_size == entry["size_bytes"] and stamp_of(s) == entry["stamp"] for s in both)


def _serve(
    connection: socket.socket, source: _Source, tokens: list[str], places: threading.Semaphore
) -> None:
    """A stranger, garbage or a receiver that ends: the connection closes, and nothing else happens."""
    with connection, suppress(OSError):
        try:
            set_silence(connection, GREETING_S)
            if greet(connection, tokens):
                set_silence(connection)
                while (request := receive_message(connection)) is not None:
                    _answer_request(connection, source, request)
        finally:
            places.release()


def _answer_request(connection: socket.socket, source: _Source, request: dict[str, Any]) -> None:
    name, offset = request.get("name"), request.get("offset")
    try:
        if not isinstance(name, str) or type(offset) is not int:
            raise Refused("a request must have a name and an offset")
        fd, size = source.open(name)
    except Refused as refusal:
        send_message(connection, {"error": refusal.message})
        return
    try:
        if not 0 <= offset <= size:
            send_message(connection, {"error": f"{name} has {size} bytes, got offset {offset}"})
            return
        send_message(connection, {"num_bytes": size - offset})
        whole = _send(connection, source, name, fd, offset, size)
        connection.sendall(UNCHANGED if whole and source.is_same(name, fd) else CHANGED)
    finally:
        os.close(fd)


def _send(connection: socket.socket, source: _Source, name: str, fd: int, offset: int, size: int) -> bool:
    """False when the file got shorter meanwhile: zeros fill up what was promised, and CHANGED follows."""
    reader, told, whole = object(), offset, True
    try:
        while offset < size:
            count = os.sendfile(connection.fileno(), fd, offset, min(SENDFILE_BYTES, size - offset))
            if not count:
                whole = False
                count = min(SENDFILE_BYTES, size - offset)
                connection.sendall(bytes(count))
            offset += count
            if offset - told >= STEP_BYTES:
                told = offset
                source.drop.moved(name, reader, fd, offset)
    finally:
        source.drop.left(name, reader, fd)
    return whole

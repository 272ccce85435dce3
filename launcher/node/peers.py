"""Supervisors keep each other informed: all ranks of a run end together, also when no launcher is attached.

Every worker's supervisor holds one TCP connection to the head's supervisor on the fabric. Both send a line
each second. A line is JSON: `{"hello": ...}` with the run's token first, `{}` as a sign of life, and
`{"ended": {...}}` when a node's engine ended. Silence of `timeout_s` counts as an end: the cable is out, the
node is down, or its supervisor is frozen; the ranks cannot serve without it, so they end and free their
memory.
"""

from __future__ import annotations

import hmac
import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

BEAT_S = 1.0
QUIET_S = 3.0  # two beats were missed: not an end yet, but worth telling
# Workers are started after the head, over connections of their own: the first meeting may take longer than
# a beat.
MIN_MEETING_S = 60.0
HELLO_TIMEOUT_S = 5.0
MAX_LINE_BYTES = 64 * 1024
MAX_STRANGERS = 16  # connections that have not said hello


class Peers:
    """Runs in threads; events `(kind, node, detail)` come out of `events`.

    kinds: "ended" (a peer says its engine ended), "silent" (no sign of life), "joined".
    """

    def __init__(self, *, node: str, token: str, is_head: bool, address: str, port: int,
                 num_workers: int, timeout_s: float, meeting_s: float = MIN_MEETING_S) -> None:  # fmt: skip
        self.events: queue.SimpleQueue[tuple[str, str, dict[str, Any]]] = queue.SimpleQueue()
        self._node = node
        self._token = token
        self._address = (address, port)
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._meeting_s = max(meeting_s, timeout_s)
        self._where = f"{address}:{port} in {self._meeting_s:.0f} s"
        self._lock = threading.Lock()
        self._links: dict[str, socket.socket] = {}
        self._heard_s: dict[str, float] = {}
        self._strangers: list[socket.socket] = []  # oldest first
        self._closing = threading.Event()
        if is_head and num_workers:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._listener = socket.create_server(self._address, family=family, backlog=16)
            self._spawn(self._accept)
        elif not is_head:
            self._spawn(self._connect)
        self._spawn(self._beat)

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    def quiet(self) -> list[str]:
        """Peers that were heard once and have missed two beats."""
        now = time.monotonic()
        with self._lock:
            return sorted(peer for peer, heard_s in self._heard_s.items() if now - heard_s > QUIET_S)

    def tell_ended(self, detail: dict[str, Any]) -> None:
        """Tell every peer; returns after the bytes are handed to the kernel."""
        self._closing.set()
        self._send({"ended": {"node": self._node, **detail}})

    def close(self) -> None:
        """Readers meet the end of their links and stop. What was sent before still arrives."""
        self._closing.set()
        with self._lock:
            links = list(self._links.values())
        for link in links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            links = list(self._links.values())
        for link in links:
            try:
                link.sendall(data)
            except OSError:
                continue  # the reader of that link reports it

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_S):
            self._send({})

    # Head ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with self._listener:
            self._accept_until_closing()

    def _accept_until_closing(self) -> None:
        self._listener.settimeout(0.2)
        meeting_until = time.monotonic() + self._meeting_s
        while not self._closing.is_set():
            with self._lock:
                num_missing = self._num_workers - len(self._heard_s)
            if num_missing > 0 and time.monotonic() > meeting_until:
                text = f"{num_missing} of {self._num_workers} workers did not reach the head's {self._where}"
                self.events.put(("silent", "workers", {"what": text}))
                return
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self._make_room()
            with self._lock:
                self._strangers.append(link)
            self._spawn(self._serve, link)

    def _make_room(self) -> None:
        """A worker says hello at once, so of many strangers the one that waits longest is sent away."""
        with self._lock:
            oldest = self._strangers.pop(0) if len(self._strangers) >= MAX_STRANGERS else None
        if oldest:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def _serve(self, link: socket.socket) -> None:
        """A stranger that does not know the token is sent away; nothing it does can end the run."""
        with link:
            lines = _Lines(link, HELLO_TIMEOUT_S)
            hello = next(lines, {})
            with self._lock:
                if link in self._strangers:
                    self._strangers.remove(link)
            token, name = str(hello.get("token", "")).encode(), hello.get("hello")
            if hmac.compare_digest(token, self._token.encode()) and isinstance(name, str):
                with suppress(OSError):  # tell the worker that it is in; an error shows on reading
                    link.sendall(b"{}\n")
                self._add(name, link)
                self._follow(name, lines)

    # Worker --------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Try until the head answers the hello: one that is flooded by strangers may send us away too."""
        deadline = time.monotonic() + self._meeting_s
        while not self._closing.is_set():
            why = self._meet_and_follow()
            if not why:
                return
            if time.monotonic() > deadline:
                text = f"the head's {self._where} was not reached: {why}"
                self.events.put(("silent", "head", {"what": text}))
                return
            self._closing.wait(0.2)

    def _meet_and_follow(self) -> str:
        """Returns why the head was not met, or "" once it was met and its link has ended."""
        try:
            link = socket.create_connection(self._address, timeout=2.0)
        except OSError as error:
            return str(error)
        with link:
            lines = _Lines(link, self._timeout_s)
            hello = json.dumps({"hello": self._node, "token": self._token}).encode() + b"\n"
            with suppress(OSError):  # an error shows on reading
                link.sendall(hello)
            if next(lines, None) is None:
                return f"it did not answer our hello: {lines.end}"
            self._add("head", link)
            self._follow("head", lines)
        return ""

    # Both ----------------------------------------------------------------------------------------------

    def _add(self, peer: str, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._links[peer] = link
            self._heard_s[peer] = time.monotonic()
        self.events.put(("joined", peer, {}))

    def _follow(self, peer: str, lines: _Lines) -> None:
        lines.set_timeout(self._timeout_s)
        for message in lines:
            with self._lock:
                self._heard_s[peer] = time.monotonic()
            ended = message.get("ended")
            if isinstance(ended, dict):
                self.events.put(("ended", str(ended.get("node", peer)), ended))
                return
        if not self._closing.is_set():
            self.events.put(("silent", peer, {"what": f"{peer}: {lines.end}"}))


class _Lines:
    """Messages of a link until it closes, is silent too long,
    or sends what is no message; `end` says which.
    """

    def __init__(self, link: socket.socket, timeout_s: float) -> None:
        self.end = ""
        self._link = link
        self._buffer = b""
        self.set_timeout(timeout_s)

    def set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._link.settimeout(timeout_s)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE_BYTES:
                self._stop("it sent a line that is too long")
            try:
                data = self._link.recv(4096)
            except TimeoutError:
                self._stop(
                    f"no sign of life for {self._timeout_s:.0f} s:"
                    " the node, its cable or its supervisor is down"
                )
            except OSError as error:
                self._stop(f"its connection broke: {error.strerror}")
            if not data:
                self._stop("its supervisor ended without a word")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError):
            self._stop("it sent what is no message")
        if not isinstance(message, dict):
            self._stop("it sent what is no message")
        return dict(message)

    def _stop(self, why: str) -> None:
        self.end = why
        raise StopIteration

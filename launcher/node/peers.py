"""Supervisors keep each other informed: all ranks of a run end together, also when no launcher is attached.

Every worker's supervisor holds one TCP connection to the head's supervisor on the fabric. Both send a line
each second. A line is JSON: `{"hello": ...}` with the run's token first, `{}` as a sign of life, and
`{"ended": {...}}` when a node's engine ended. Silence of `timeout_s` counts as an end: the cable is out, the
node is down, or its supervisor is frozen; the ranks cannot serve without it, so they end and free their memory.
"""

from __future__ import annotations

import hmac
import json
import queue
import socket
import threading
import time

BEAT_S = 1.0
MAX_LINE_BYTES = 64 * 1024


class Peers:
    """Runs in threads; events `(kind, node, detail)` come out of `events`.

    kinds: "ended" (a peer says its engine ended), "silent" (no sign of life), "joined".
    """

    def __init__(self, *, node: str, token: str, is_head: bool, address: str, port: int,
                 num_workers: int, timeout_s: float) -> None:  # fmt: skip
        self.events: queue.SimpleQueue[tuple[str, str, dict]] = queue.SimpleQueue()
        self._node = node
        self._token = token
        self._address = (address, port)
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._links: dict[str, socket.socket] = {}
        self._closing = threading.Event()
        if is_head and num_workers:
            self._listener = socket.create_server(self._address, backlog=16)
            self._spawn(self._accept)
        elif not is_head:
            self._spawn(self._connect)
        self._spawn(self._beat)

    def _spawn(self, target, *args) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    def tell_ended(self, detail: dict) -> None:
        """Tell every peer; returns after the bytes are handed to the kernel."""
        self._send({"ended": {"node": self._node, **detail}})
        self._closing.set()

    def _send(self, message: dict) -> None:
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

    def _accept(self) -> None:
        self._listener.settimeout(self._timeout_s)
        while not self._closing.is_set():
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                with self._lock:
                    missing = self._num_workers - len(self._links)
                if missing > 0:
                    text = "%d of %d workers did not reach the head's %s:%d in %.0f s" % (
                        missing, self._num_workers, *self._address, self._timeout_s)  # fmt: skip
                    self.events.put(("silent", "workers", {"what": text}))
                    return
                continue
            except OSError:
                return
            self._spawn(self._serve, link)

    def _serve(self, link: socket.socket) -> None:
        lines = self._lines(link)
        hello = next(lines, None)
        if not hello or not hmac.compare_digest(str(hello.get("token", "")), self._token):
            link.close()
            return
        self._add(hello["hello"], link)
        self._follow(hello["hello"], lines)

    def _connect(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not self._closing.is_set():
            try:
                link = socket.create_connection(self._address, timeout=2.0)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    text = "the head's %s:%d was not reached in %.0f s: %s" % (*self._address, self._timeout_s, error)
                    self.events.put(("silent", "head", {"what": text}))
                    return
                time.sleep(0.2)
        else:
            return
        # The hello goes first: once the link is known, the beat may write to it.
        link.sendall(json.dumps({"hello": self._node, "token": self._token}).encode() + b"\n")
        self._add("head", link)
        self._follow("head", self._lines(link))

    def _add(self, peer: str, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._links[peer] = link
        self.events.put(("joined", peer, {}))

    def _follow(self, peer: str, lines) -> None:
        for message in lines:
            if "ended" in message:
                self.events.put(("ended", str(message["ended"].get("node", peer)), message["ended"]))
                return
        if not self._closing.is_set():
            text = "no sign of life from %s for %.0f s, or its connection closed" % (peer, self._timeout_s)
            self.events.put(("silent", peer, {"what": text}))

    def _lines(self, link: socket.socket):
        """Messages of a link until it closes, is silent too long, or sends what is no message."""
        link.settimeout(self._timeout_s)
        buffer = b""
        while True:
            try:
                data = link.recv(4096)
            except OSError:
                return
            buffer += data
            if not data or len(buffer) > MAX_LINE_BYTES:
                return
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:
                    return
                if isinstance(message, dict):
                    yield message

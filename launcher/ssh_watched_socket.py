"""The socket under an SSH connection, watched for silence."""

from __future__ import annotations

import errno
import socket
import time

from launcher.ssh_paramiko import paramiko

GREETING_BYTES = 60


class LinkSilent(OSError):
    """The other end has not answered our pings; TCP alone would notice after many minutes."""


class WatchedSocket:
    """Socket or channel under a transport. Its reads and writes fail once a ping goes unanswered.

    paramiko's transport thread polls `recv` ten times a second, so this needs no thread of its own.
    """

    def __init__(self, inner: socket.socket | paramiko.Channel, dead_after_s: float) -> None:
        self._inner = inner
        self._dead_after_s = dead_after_s
        self._unanswered_since: float | None = None
        self.last_received = time.monotonic()
        self.greeting = b""
        self._closed = False  # paramiko's transport looks at this name on its socket

    def expect_answer(self) -> None:
        """A ping is about to be sent: bytes must come within `dead_after_s`."""
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()

    def recv(self, num_bytes: int) -> bytes:
        try:
            data = self._inner.recv(num_bytes)
        except TimeoutError:
            self._raise_if_silent()
            raise
        self._unanswered_since = None
        self.last_received = time.monotonic()
        if len(self.greeting) < GREETING_BYTES:
            self.greeting += data[:GREETING_BYTES]
        return data

    def send(self, data: bytes) -> int:
        try:
            return self._inner.send(data)
        except TimeoutError:
            self._raise_if_silent()
            raise

    def settimeout(self, timeout_s: float | None) -> None:
        self._inner.settimeout(timeout_s)

    def close(self) -> None:
        self._closed = True
        self._inner.close()

    def _raise_if_silent(self) -> None:
        since = self._unanswered_since
        if since is not None and time.monotonic() - since > self._dead_after_s:
            raise LinkSilent(errno.ETIMEDOUT, f"no answer for {self._dead_after_s:g} s")

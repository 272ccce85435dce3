"""Collect a command's output in a thread of its own, so that a full pipe never blocks the command."""

from __future__ import annotations

import threading
from collections.abc import Callable

# A probe or a log excerpt is far below this; more is a runaway command, and N nodes must fit in memory.
MAX_OUTPUT_BYTES = 64 << 20
CHUNK_BYTES = 64 << 10


class OutputCapture:
    """Reads with `read(num_bytes)` until it returns b"", then calls `at_end`, both in its own thread.

    `keep_tail` false: past `limit_bytes` reading stops, `overflowed` is set and `on_overflow` is called to
    end the command. True: only the last `limit_bytes` are kept, for as long as the command talks.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        *,
        limit_bytes: int = MAX_OUTPUT_BYTES,
        keep_tail: bool = False,
        at_end: Callable[[], None] = lambda: None,
        on_overflow: Callable[[], None] = lambda: None,
    ) -> None:
        self._read = read
        self._on_overflow = on_overflow
        self._at_end = at_end
        self._limit_bytes = limit_bytes
        self._keep_tail = keep_tail
        self._data = bytearray()
        self.overflowed = False
        self._thread = threading.Thread(target=self._drain, name="output-capture", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the output; False when it did not come in time."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def data(self) -> bytes:
        return bytes(self._data)

    def _drain(self) -> None:
        try:
            self._collect()
        finally:
            self._at_end()

    def _collect(self) -> None:
        while chunk := self._read_chunk():
            self._data += chunk
            if len(self._data) > self._limit_bytes:
                if not self._keep_tail:
                    self.overflowed = True
                    self._on_overflow()
                    return
                del self._data[: -self._limit_bytes]

    def _read_chunk(self) -> bytes:
        try:
            return self._read(CHUNK_BYTES)
        except (OSError, ValueError):  # closed under us: the end
            return b""

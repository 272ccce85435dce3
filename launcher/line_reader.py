"""Lines of a running command, read in a thread of its own and handed out with a time-out."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from launcher.output_capture import CHUNK_BYTES

# Longer than any line of engine log or any message; a stream without newlines must not fill memory.
MAX_LINE_BYTES = 16 << 20
# A reader that falls this far behind makes the command wait, as a pipe does.
MAX_QUEUED_LINES = 4096


class LineReader:
    """Reads with `read(num_bytes)` until it returns b"", then calls `at_end`, both in its own thread.

    A last line without newline counts as a line.
    """

    def __init__(self, read: Callable[[int], bytes], *, at_end: Callable[[], None] = lambda: None) -> None:
        self._read = read
        self._at_end = at_end
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_QUEUED_LINES)
        self._stopped = threading.Event()
        self._ended = False
        self.overflowed = False
        threading.Thread(target=self._fill, name="line-reader", daemon=True).start()

    def next_line(self, timeout_s: float) -> bytes | None:
        """Next line without its newline, None when none came in time. Raises EOFError at the end."""
        if self._ended:
            raise EOFError
        deadline = time.monotonic() + timeout_s
        while True:
            # short waits, so that stop() from another thread is noticed
            wait_s = min(0.25, deadline - time.monotonic())
            try:
                line = self._lines.get(timeout=wait_s) if wait_s > 0 else self._lines.get_nowait()
            except queue.Empty:
                if self._stopped.is_set():
                    self._ended = True
                    raise EOFError from None
                if wait_s <= 0:
                    return None
                continue
            if line is None:
                self._ended = True
                raise EOFError
            return line

    def stop(self) -> None:
        """Hand out what is queued, then end. The thread ends when its read does."""
        self._stopped.set()

    def _fill(self) -> None:
        try:
            self._split_lines()
        finally:
            self._put(None)
            self._at_end()

    def _split_lines(self) -> None:
        rest = bytearray()
        while chunk := self._read_chunk():
            start = len(rest)
            rest += chunk
            if b"\n" in chunk:
                *lines, tail = bytes(rest).split(b"\n")
                rest = bytearray(tail)
                for line in lines:
                    self._put(line)
            elif start + len(chunk) > MAX_LINE_BYTES:
                self.overflowed = True
                break
        if rest and not self.overflowed:
            self._put(bytes(rest))

    def _put(self, line: bytes | None) -> None:
        while not self._stopped.is_set():
            try:
                self._lines.put(line, timeout=0.25)
                return
            except queue.Full:
                continue

    def _read_chunk(self) -> bytes:
        try:
            return self._read(CHUNK_BYTES)
        except (OSError, ValueError):  # closed under us: the end
            return b""

"""Splits the bytes of an engine's log into lines while they arrive.

A progress bar separates its states by carriage returns, so both kinds of line end count. Empty lines carry
nothing for a reader of logs and are left out, which also makes "\\r\\n" one line end.
"""

from __future__ import annotations

# The longest useful line is the server_args one (about 25 kB). The request dump before a watchdog stop
# carries all token ids (megabytes at 1M context); its two ends say all there is to say.
HEAD_BYTES = 48 * 1024
TAIL_BYTES = 16 * 1024

_LINE_ENDS = bytes.maketrans(b"\r", b"\n")


class LogLines:
    """Incremental splitter. How the bytes are cut into chunks never changes the lines that come out."""

    def __init__(self, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        if head_bytes < 1 or tail_bytes < 1:
            raise ValueError(f"head_bytes and tail_bytes must be >= 1, got {head_bytes} and {tail_bytes}.")
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._num_bytes = 0
        self.dropped_bytes = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Returns the lines that `chunk` completes, without their line ends."""
        *complete, rest = chunk.translate(_LINE_ENDS).split(b"\n")
        lines = []
        for piece in complete:
            self._append(piece)
            if self._num_bytes:
                lines.append(self._take())
        self._append(rest)
        return lines

    def finish(self) -> list[str]:
        """Returns what stands behind the last line end, if anything. The splitter is empty after."""
        return [self._take()] if self._num_bytes else []

    def _append(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        if piece:
            self._tail += piece[-self._tail_bytes :]
            # Trimmed at twice the size only, so that a line fed byte by byte is not copied for each byte.
            if len(self._tail) > 2 * self._tail_bytes:
                del self._tail[: -self._tail_bytes]

    def _take(self) -> str:
        tail = bytes(self._tail[-self._tail_bytes :])
        dropped = self._num_bytes - len(self._head) - len(tail)
        if dropped:
            head_text = self._head.decode("utf-8", "replace")
            line = f"{head_text} ...[{dropped} bytes left out]... {tail.decode('utf-8', 'replace')}"
        else:
            line = (bytes(self._head) + tail).decode("utf-8", "replace")
        self.dropped_bytes += dropped
        self._head.clear()
        self._tail.clear()
        self._num_bytes = 0
        return line

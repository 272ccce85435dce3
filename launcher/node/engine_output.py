"""Copies the engine's output into engine.log with secrets masked.

The engine prints its API key (in `server_args=` and in tracebacks), so the bytes go through a masker before
they touch the disk. A full disk must not stop the engine: what cannot be written is counted and said so.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from launcher.redact import Masker


class EngineOutput:
    """Reads `fd` to its end in a thread."""

    def __init__(self, fd: int, log: Path, secrets: list[str]) -> None:
        self.dropped_bytes = 0
        self.write_error = ""
        self._fd = fd
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._masker = Masker(secrets)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        while True:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                break
            if not data:
                break
            self._write(self._masker.feed(data))
        self._write(self._masker.finish())
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._log, view) :]
            if data and self.write_error:
                note = f"sparkctl: {self.dropped_bytes} bytes of output were lost: {self.write_error}\n"
                self.write_error = ""
                os.write(self._log, note.encode())
        except OSError as error:
            self.dropped_bytes += len(view)
            self.write_error = str(error)

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of the output; a grandchild may hold the pipe, so only for `timeout_s`."""
        self._thread.join(timeout_s)

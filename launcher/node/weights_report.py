"""Progress of a long request: a line twice a second, a sign of life too; it ends with the launcher."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

from launcher.node.answer import answer

EVERY_S = 0.5


class Report:
    """`with Report("hash", total) as report: report.add(n)`: lines {"progress": {...}} until the block ends.

    When the launcher hangs up the process ends at once: everything on disk can be resumed at any moment.
    """

    def __init__(self, phase: str, total_bytes: int, done_bytes: int = 0) -> None:
        self._phase = phase
        self._total_bytes = total_bytes
        self._done_bytes = done_bytes
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tell_often, daemon=True)

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done_bytes += num_bytes

    def __enter__(self) -> Report:
        end_with_launcher()
        self._tell()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._tell()

    def _tell_often(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self._tell()
            except OSError:  # the launcher hung up
                os._exit(0)

    def _tell(self) -> None:
        with self._lock:
            done = self._done_bytes
        answer({"progress": {"phase": self._phase, "done_bytes": done, "total_bytes": self._total_bytes}})


_watching = threading.Event()


def end_with_launcher() -> None:
    if not _watching.is_set():
        _watching.set()
        threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)

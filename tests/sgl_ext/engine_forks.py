"""Engines of tests as forks of one process that has imported SGLang (engine_origin.py).

The import is most of what a small engine costs: 6 of 9 s on a free core. A test of how a user starts an
engine, or of another library below it (LD_PRELOAD), starts a process of its own instead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.sgl_ext.engine_variables import KEEP_FREED_MEMORY

PROJECT = Path(__file__).parents[2]
IMPORT_TIMEOUT_S = 300.0


class EngineFork:
    """One engine; `wait` gives what subprocess.run would."""

    def __init__(self, script: str, folder: Path) -> None:
        self.script, self.folder = script, folder
        self._pid: int | None = None
        self._status = 1
        self._started, self._ended = threading.Event(), threading.Event()

    def tell(self, line: dict[str, Any]) -> None:
        if "pid" in line:
            self._pid = line["pid"]
            self._started.set()
        else:
            self._status = line["status"]
            self._ended.set()

    def wait(self, timeout_s: float) -> subprocess.CompletedProcess[str]:
        assert self._started.wait(IMPORT_TIMEOUT_S), "the process that forks engines does not answer"
        if not self._ended.wait(timeout_s):
            self.kill()
            raise AssertionError(
                f"the engine did not end in {timeout_s:.0f} s: {self._read('stderr')[-4000:]}"
            )
        self.kill()  # a child that outlived it
        return subprocess.CompletedProcess(
            [self.script], self._status, self._read("stdout"), self._read("stderr")
        )

    def kill(self) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self._pid = None

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")


class EngineForks:
    """The origin, started with the first engine; a worker of pytest has one (fixture engine_forks)."""

    def __init__(self) -> None:
        self._origin: subprocess.Popen[str] | None = None
        self._forks: list[EngineFork] = []

    def start(
        self,
        script: str,
        folder: Path,
        environment: dict[str, str],
        *argv: str,
        path: Sequence[Path] = (),
    ) -> EngineFork:
        """`script`: the module whose main() runs. `path`: folders that come first on its sys.path."""
        origin = self._origin = self._origin or self._start_origin()
        fork = EngineFork(script, folder)
        self._forks.append(fork)
        order = {
            "number": len(self._forks) - 1,
            "script": script,
            "argv": argv,
            "folder": str(folder),
            "environment": environment,
            "path": [str(item) for item in path],
        }
        assert origin.stdin
        origin.stdin.write(json.dumps(order) + "\n")
        origin.stdin.flush()
        return fork

    def close(self) -> None:
        if self._origin is not None:
            for fork in self._forks:
                fork.kill()
            assert self._origin.stdin
            self._origin.stdin.close()
            self._origin.wait(30)

    def _start_origin(self) -> subprocess.Popen[str]:
        foreign = ("SPARKCTL_", "SGLANG_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        origin = subprocess.Popen(
            [sys.executable, "-m", "tests.sgl_ext.engine_origin"],
            cwd=PROJECT,
            env={**environment, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **KEEP_FREED_MEMORY},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, args=(origin,), daemon=True).start()
        return origin

    def _read(self, origin: subprocess.Popen[str]) -> None:
        assert origin.stdout
        for line in origin.stdout:
            answer = json.loads(line)
            self._forks[answer["number"]].tell(answer)
        origin.stdout.close()

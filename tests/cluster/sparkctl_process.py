"""The installed `sparkctl`, run as a user runs it:
a process of its own, with its own home, its output kept.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

COMMAND = Path(sys.prefix) / "bin" / "sparkctl"
READY_TIMEOUT_S = 240.0  # three engines import on one busy core


@dataclass(frozen=True, slots=True)
class Done:
    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def json(self) -> Any:
        return json.loads(self.stdout)


class Sparkctl:
    """Commands that share one home: one user on one machine."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started: list[Running] = []

    def start(self, *argv: str) -> Running:
        process = Running([str(COMMAND), *argv], self.home)
        self.started.append(process)
        return process

    def run(self, *argv: str, timeout_s: float = 60.0) -> Done:
        return self.start(*argv).wait(timeout_s)

    def up(self, *argv: str) -> Done:
        """Must become ready."""
        done = self.run("up", *argv, timeout_s=READY_TIMEOUT_S)
        assert done.exit_code == 0, done.output
        return done

    def follow(self, *argv: str) -> Running:
        """`up --follow`, once it is ready and watching."""
        process = self.start("up", "--follow", *argv)
        process.wait_for("following;", READY_TIMEOUT_S)
        return process

    def run_ids(self) -> list[str]:
        return sorted(path.name for path in (self.home / ".local/state/sparkctl/control").iterdir())

    def record(self, run_id: str) -> dict[str, Any]:
        path = self.home / ".local/state/sparkctl/control" / run_id / "record.json"
        return dict(json.loads(path.read_text()))

    def close(self) -> None:
        for process in self.started:
            process.kill()


class Running:
    """One running command. `peak_bytes`: the most memory its own process held."""

    def __init__(self, argv: Sequence[str], home: Path) -> None:
        env = {"HOME": str(home), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        self.pid = self._process.pid
        self.peak_bytes = 0
        self._lines: list[tuple[float, str]] = []
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._ended_s = 0.0
        assert self._process.stdout and self._process.stderr
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout, self._stdout), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, self._stderr), daemon=True),
            threading.Thread(target=self._measure, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: IO[bytes], into: list[str]) -> None:
        for raw in pipe:
            line = raw.decode(errors="replace")
            into.append(line)
            self._lines.append((time.monotonic(), line))
        pipe.close()

    def _measure(self) -> None:
        while self._process.poll() is None:
            try:
                status = Path(f"/proc/{self.pid}/status").read_text()
            except OSError:
                break
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            self.peak_bytes = max(self.peak_bytes, int(found[1]) * 1024 if found else 0)
            time.sleep(0.05)
        self._process.wait()
        self._ended_s = time.monotonic()

    @property
    def stderr(self) -> str:
        return "".join(self._stderr)

    @property
    def output(self) -> str:
        return "".join(line for _, line in list(self._lines))

    def wait_for(self, text: str, timeout_s: float) -> float:
        """When the first line with `text` came (time.monotonic()). AssertionError when none does."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for seen_s, line in list(self._lines):
                if text in line:
                    return seen_s
            if self._process.poll() is not None and not any(thread.is_alive() for thread in self._threads):
                break
            time.sleep(0.02)
        raise AssertionError(f"{text!r} was not printed in {timeout_s:.0f} s:\n{self.output}")

    def wait(self, timeout_s: float) -> Done:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end in {timeout_s:.0f} s:\n{self.output}") from None
        for thread in self._threads:
            thread.join(60)
        return Done(
            self._process.returncode, "".join(self._stdout), self.stderr, self._ended_s - self._started
        )

    def send_interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(60)


def assert_one_clear_error(done: Done, *parts: str, exit_code: int | None = None) -> None:
    """One `error:` line, a next command, every part in the message,
    and nothing that only a programmer reads.
    """
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, done.output
    assert "  -> " in done.stderr, done.output
    for part in parts:
        assert part in done.stderr, f"{part!r} is missing:\n{done.output}"
    assert "Traceback" not in done.output, done.output
    assert done.exit_code == exit_code if exit_code is not None else done.exit_code > 0, done.output


def cause_of(done: Done) -> str:
    """The line that is given as the cause; empty when none is."""
    found = re.search(r"^  cause: (.*)$", done.stderr, re.MULTILINE)
    return found[1] if found else ""

"""Files and tools of a machine, read below a root: `/` on a node, a recorded tree in tests."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

TOOL_DIRECTORIES = (
    "usr/local/sbin",
    "usr/sbin",
    "sbin",
    "usr/local/bin",
    "usr/bin",
    "bin",
    "usr/local/cuda/bin",
)
TOOL_TIMEOUT_S = 4.0
MAX_OUTPUT_BYTES = 8 << 20


@dataclass(frozen=True)
class ToolOutput:
    """What a tool said. `problem` is set when it could not be asked: missing, or silent for too long."""

    status: int = -1
    stdout: str = ""
    stderr: str = ""
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        return self.problem is None and self.status == 0

    @property
    def first_line(self) -> str:
        """What it said, in one line for people."""
        lines = (self.stdout + "\n" + self.stderr).strip().splitlines()
        return self.problem or (lines[0].strip() if lines else f"exit status {self.status} without a word")


class ProbeRoot:
    """Reads only. What cannot be read is None; which tools could not be asked is kept in `tool_problems`."""

    def __init__(self, path: str = "/") -> None:
        self.top = Path(path)
        self.tool_problems: dict[str, str] = {}

    @property
    def is_recorded(self) -> bool:
        return self.top != Path("/")

    def path(self, where: str) -> Path:
        return self.top / where.lstrip("/")

    def text(self, where: str) -> str | None:
        """sysfs answers EINVAL for a link that is down, so every failure is an absent value."""
        try:
            return self.path(where).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, where: str) -> int | None:
        text = self.text(where)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def names(self, where: str) -> list[str]:
        try:
            return sorted(entry.name for entry in self.path(where).iterdir())
        except OSError:
            return []

    def find_tool(self, name: str) -> str | None:
        places = (self.top / directory / name for directory in TOOL_DIRECTORIES)
        return next((str(place) for place in places if os.access(place, os.X_OK)), None)

    def tool(
        self, name: str, *arguments: str, timeout_s: float | None = None, is_needed: bool = True
    ) -> ToolOutput:
        """Run a tool. `is_needed`: its absence is a finding."""
        program = self.find_tool(name)
        if program is None:
            return self._failed(name, f"{name} is not installed", is_needed)
        return self._run(name, program, arguments, timeout_s)

    def program(self, where: str, *arguments: str, timeout_s: float | None = None) -> ToolOutput:
        """Run the program at this path, such as the engine's Python."""
        if not os.access(self.path(where), os.X_OK):
            return ToolOutput(problem=f"there is no {where}")
        return self._run(where.rsplit("/", 1)[-1], str(self.path(where)), arguments, timeout_s)

    def _run(
        self, name: str, program: str, arguments: tuple[str, ...], timeout_s: float | None
    ) -> ToolOutput:
        timeout_s = timeout_s or TOOL_TIMEOUT_S
        path = ":".join(str(self.top / directory) for directory in TOOL_DIRECTORIES)
        environment = {"LC_ALL": "C", "PATH": path, "HOME": os.environ.get("HOME", "/")}
        try:
            done = subprocess.run(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return self._failed(name, f"{name} did not answer within {timeout_s:.1f} s", True)
        except OSError as error:
            return self._failed(name, f"{name} cannot be run: {error.strerror}", True)
        stdout, stderr = (
            data[-MAX_OUTPUT_BYTES:].decode(errors="replace") for data in (done.stdout, done.stderr)
        )
        return ToolOutput(done.returncode, stdout, stderr)

    def _failed(self, name: str, problem: str, is_needed: bool) -> ToolOutput:
        if is_needed:
            self.tool_problems[name] = problem
        return ToolOutput(problem=problem)

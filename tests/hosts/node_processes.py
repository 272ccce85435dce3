"""Processes of a test node, seen from outside through /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A process of the node: its pid outside (for os.kill by the test), inside, and its argv."""

    pid: int
    node_pid: int
    argv: tuple[str, ...]


def processes_in(init_pid: int) -> list[NodeProcess]:
    """Every living process in the PID namespace whose process 1 has this pid outside."""
    namespace = _pid_namespace(init_pid)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and namespace and _pid_namespace(int(entry.name)) == namespace:
            process = _read_process(int(entry.name))
            if process is not None:
                found.append(process)
    return sorted(found, key=lambda p: p.node_pid)


def kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # ended meanwhile
        return ""


def _read_process(pid: int) -> NodeProcess | None:
    """None for a process that has ended: gone, or a zombie not yet reaped."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if fields["State"].split()[0] in "ZX":
        return None
    words = tuple(word.decode(errors="replace") for word in argv.rstrip(b"\0").split(b"\0"))
    return NodeProcess(pid, int(fields["NSpid"].split()[-1]), words)


def is_sshd(process: NodeProcess) -> bool:
    try:
        return Path(f"/proc/{process.pid}/exe").readlink().name.startswith("sshd")
    except OSError:
        return False

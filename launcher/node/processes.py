"""Processes of a run, read from /proc.

A process belongs to a run when it carries the run's id and node in its environment, or is in the
supervisor's session, or descends from the supervisor. All three are needed: setproctitle overwrites the
environment that /proc shows, and a library may start a session of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    pid: int
    parent_pid: int
    session: int
    state: str  # one letter of /proc/PID/stat: R S D T t Z X
    start_ticks: int
    title: str


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_process(pid: int) -> Process | None:
    """None when it is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    name_end = stat.rindex(")")
    fields = stat[name_end + 2 :].split()
    title = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(
        pid=pid,
        parent_pid=int(fields[1]),
        session=int(fields[3]),
        state=fields[0],
        start_ticks=int(fields[19]),
        title=title or stat[stat.index("(") + 1 : name_end],
    )


def all_processes() -> dict[int, Process]:
    found = {}
    for entry in os.listdir(PROC):
        if entry.isdigit():
            process = read_process(int(entry))
            if process is not None:
                found[process.pid] = process
    return found


def _has_environment(pid: int, wanted: tuple[bytes, ...]) -> bool:
    try:
        entries = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(item in entries for item in wanted)


def run_processes(run_id: str, node: str, supervisor_pid: int, session: int) -> list[Process]:
    """Living processes of the run on this node (zombies left out), the supervisor among them."""
    processes = all_processes()
    wanted = (b"SPARKCTL_RUN_ID=" + run_id.encode(), b"SPARKCTL_NODE=" + node.encode())
    supervisor = processes.get(supervisor_pid)
    roots = {supervisor_pid} if supervisor and supervisor.session == session else set()
    members = {
        process.pid
        for process in processes.values()
        if process.session == session or process.pid in roots or _has_environment(process.pid, wanted)
    }
    grew = True
    while grew:
        more = {p.pid for p in processes.values() if p.parent_pid in members and p.pid not in members}
        grew = bool(more)
        members |= more
    members.discard(os.getpid())
    return [processes[pid] for pid in sorted(members) if processes[pid].state not in "ZX"]


def same_process(pid: int, start_ticks: int) -> Process | None:
    """The process if it is still the one that was recorded, not a later one with the same pid."""
    process = read_process(pid)
    if process is None or process.start_ticks != start_ticks or process.state in "ZX":
        return None
    return process


def shared_memory_files(pids: list[int]) -> set[str]:
    """Names under /dev/shm that these processes have mapped or open."""
    names = set()
    for pid in pids:
        try:
            for line in (PROC / str(pid) / "maps").read_text(errors="replace").splitlines():
                at = line.find("/dev/shm/")
                if at >= 0:
                    names.add(line[at + 9 :].replace(" (deleted)", ""))
            for fd in os.scandir(PROC / str(pid) / "fd"):
                target = os.readlink(fd.path)
                if target.startswith("/dev/shm/"):
                    names.add(target[9:].replace(" (deleted)", ""))
        except OSError:  # gone, or another user's: then it holds nothing of ours
            continue
    return names


def memory_available_bytes() -> int:
    for line in (PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable line")

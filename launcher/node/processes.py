"""Processes of a run, read from /proc.

A process belongs to a run when it carries the run's id and node in its environment, or is in the
supervisor's session, or descends from one that does. All three are needed: setproctitle overwrites the
environment that /proc shows, and a library may start a session of its own.

Numbers are used again: the supervisor's pid and its session (the same number) count only while nobody else
has that pid. As long as one process of a session lives, Linux gives the session's number to no new process.
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
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            process = read_process(int(entry.name))
            if process is not None:
                found[process.pid] = process
    return found


def _has_environment(pid: int, wanted: tuple[bytes, ...]) -> bool:
    try:
        entries = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(item in entries for item in wanted)


def run_processes(run_id: str, node: str, supervisor_pid: int, supervisor_start_ticks: int) -> list[Process]:
    """Living processes of the run on this node (zombies left out), the supervisor among them."""
    processes = all_processes()
    leader = processes.get(supervisor_pid)
    is_reused = leader is not None and leader.start_ticks != supervisor_start_ticks
    session = None if is_reused else supervisor_pid
    wanted = (b"SPARKCTL_RUN_ID=" + run_id.encode(), b"SPARKCTL_NODE=" + node.encode())
    members = {
        process.pid
        for process in processes.values()
        if process.session == session or _has_environment(process.pid, wanted)
    }
    return _living(processes, members)


def descendants(pid: int) -> list[Process]:
    """Living processes below `pid`: all that a subreaper started, whatever session they are in."""
    processes = all_processes()
    return [process for process in _living(processes, {pid}) if process.pid != pid]


def _living(processes: dict[int, Process], members: set[int]) -> list[Process]:
    """Those processes and all below them, but zombies and the asking process itself."""
    grew = bool(members)
    while grew:
        more = {p.pid for p in processes.values() if p.parent_pid in members and p.pid not in members}
        grew = bool(more)
        members = members | more
    found = (processes[pid] for pid in sorted(members) if pid in processes and pid != os.getpid())
    return [process for process in found if process.state not in "ZX"]


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
            for fd in list((PROC / str(pid) / "fd").iterdir()):
                target = _target(fd)
                if target.startswith("/dev/shm/"):
                    names.add(target[9:].replace(" (deleted)", ""))
        except OSError:  # gone, or another user's: then it holds nothing of ours
            continue
    return names


def _target(link: Path) -> str:
    """Empty for a descriptor that was closed meanwhile."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def memory_available_bytes() -> int:
    for line in (PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable line")

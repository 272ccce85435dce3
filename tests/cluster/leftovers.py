"""What a run left on this machine, found without any code of sparkctl: /proc, /dev/shm, listening sockets."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Found:
    pid: int
    parent_pid: int
    state: str
    title: str


def processes_of(home: Path) -> list[Found]:
    """Living processes that work in `home`, or have it in their command line or environment."""
    needle = str(home).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
            title = (entry / "cmdline").read_bytes()
            where = str((entry / "cwd").readlink()).encode()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if stat[0] not in "ZX" and (needle in title or needle in environment or where.startswith(needle)):
            text = title.replace(b"\0", b" ").decode(errors="replace")
            found.append(Found(int(entry.name), int(stat[1]), stat[0], text))
    return found


def engine_processes(home: Path) -> list[Found]:
    """All but the launchers."""
    return [item for item in processes_of(home) if "bin/sparkctl" not in item.title]


def shared_memory_of(pids: list[int]) -> set[str]:
    names = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        for line in maps.splitlines():
            if "/dev/shm/" in line:
                names.add(line.split("/dev/shm/", 1)[1].split(" (deleted)")[0])
    return names


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def assert_nothing_left(
    home: Path, shared_memory: set[str], ports: list[int], timeout_s: float = 60.0
) -> None:
    deadline = time.monotonic() + timeout_s
    while (left := engine_processes(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, left
    assert not shared_memory & {path.name for path in SHARED_MEMORY.iterdir()}
    assert not [port for port in ports if is_listening("127.0.0.1", port)]


def free_ports(count: int) -> int:
    """First of `count` ports in a row that nobody listens on; above those that a run takes for itself."""
    first = 29500 + os.getpid() % 400 * 8
    while any(is_listening("127.0.0.1", first + offset) for offset in range(count)):
        first += 8
    return first

"""End processes for certain, and remove the shared memory they leave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from launcher.node.processes import Process, all_processes, shared_memory_files

SHARED_MEMORY = Path("/dev/shm")
DOCKER_TIMEOUT_S = 10.0


def end_processes(list_processes: Callable[[], list[Process]], timeout_s: float) -> list[Process]:
    """SIGKILL until none is left; returns those still there after `timeout_s` (in uninterruptible sleep)."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = list_processes()
        if not left or time.monotonic() > deadline:
            return left
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.03)


def end_container(name: str) -> None:
    """A container is no child of ours:
    killing `docker run` would leave it running. No error when it is gone.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["docker", "rm", "--force", name], stdin=subprocess.DEVNULL, capture_output=True,
                       timeout=DOCKER_TIMEOUT_S)  # fmt: skip


def shared_memory_names() -> set[str]:
    """Files in /dev/shm; empty where there is none."""
    try:
        return {path.name for path in SHARED_MEMORY.iterdir()}
    except OSError:
        return set()


def shared_memory_named_after(pids: set[int]) -> set[str]:
    """Files that carry the pid of one of these processes in their name, such as sgl_shm_nodecheck_989_0da9.

    One that was killed between making such a file and mapping it leaves no other trace of whose it was.
    """
    return {
        name
        for name in shared_memory_names()
        if any(int(number) in pids for number in re.findall(r"_(\d+)(?=_|$)", name))
    }


def remove_shared_memory(names: set[str]) -> list[str]:
    """Unlink those files that our user owns and that no living process has mapped or open."""
    if not names & shared_memory_names():
        return []
    held = shared_memory_files(list(all_processes()))
    removed = []
    for name in sorted(names - held):
        path = SHARED_MEMORY / name
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and path.is_file():
                path.unlink()
                removed.append(name)
    return removed

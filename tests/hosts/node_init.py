"""Process 1 of a test node, run in fresh network, mount, UTS, IPC and PID namespaces.

argv[1] is a JSON file written by netns_node.py. Talks with it by lines: writes its pid as the outside
sees it, reads "net" once the interface is here, writes "ready"; "sshd" starts the server again.
End of file on stdin (the test ended, however it ended) kills everything in the node. Standard library only.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Spec = dict[str, Any]


def mount(*argv: str) -> None:
    subprocess.run(["mount", *argv], check=True)


def private_mounts(spec: Spec) -> None:
    """Give the node its own /proc, /sys, /dev/shm, /run, accounts, hosts file and home."""
    folder = Path(spec["folder"])
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    cgroups = folder / "cgroup"
    cgroups.mkdir()
    if Path("/sys/fs/cgroup").is_dir():
        mount("--rbind", "/sys/fs/cgroup", str(cgroups))
    mount("-t", "sysfs", "sysfs", "/sys")
    if Path("/sys/fs/cgroup").is_dir():
        mount("--rbind", str(cgroups), "/sys/fs/cgroup")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    Path("/run/sshd").mkdir(mode=0o755)
    Path("/run/lock").mkdir(mode=0o1777)
    for name in ("hosts", "passwd", "group", "shadow"):
        mount("--bind", str(folder / "etc" / name), f"/etc/{name}")
    cover_home(spec)


def cover_home(spec: Spec) -> None:
    """Hide root's real home; what tests need from below it (the interpreter) stays where it was."""
    cover = spec["covered_home"]
    if not cover:
        return
    kept = [path for path in spec["visible"] if Path(path).is_relative_to(cover)]
    aside = [Path(spec["folder"]) / "visible" / str(i) for i in range(len(kept))]
    for path, place in zip(kept, aside, strict=True):
        place.mkdir(parents=True)
        mount("--bind", path, str(place))
    mount("--bind", spec["covered_by"], cover)
    for path, place in zip(kept, aside, strict=True):
        Path(path).mkdir(parents=True, exist_ok=True)
        mount("--bind", str(place), path)


def start_sshd(spec: Spec) -> None:
    """Start the server and return when it listens."""
    config = f"{spec['folder']}/sshd_config"
    log = f"{spec['folder']}/sshd.log"
    argv = ["/usr/sbin/sshd", "-D", "-f", config, "-E", log]
    null = os.open("/dev/null", os.O_RDWR)
    os.posix_spawn(
        argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    )
    os.close(null)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((spec["address"], spec["port"])) == 0:
                return
        time.sleep(0.01)
    raise SystemExit(f"sshd does not listen; see {log}")


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def serve(spec: Spec) -> None:
    """Reap orphans and obey lines on stdin until its end."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    while True:
        readable, _, _ = select.select([0, wake_read], [], [], 1.0)
        if wake_read in readable:
            os.read(wake_read, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass
        if 0 in readable:
            words = os.read(0, 4096).split()
            if not words:
                return
            for _ in words:
                start_sshd(spec)
                say("ready")


def main() -> None:
    outside_pid = str(Path("/proc/self").readlink())  # /proc is still the outer one
    spec = json.loads(Path(sys.argv[1]).read_text())
    private_mounts(spec)
    socket.sethostname(spec["name"])
    say(outside_pid)
    if os.read(0, 16) != b"net\n":
        return
    ip = ["ip", "-batch", "-"]
    lines = f"link set lo up\naddr add {spec['address']}/24 dev fabric0\nlink set fabric0 up\n"
    subprocess.run(ip, input=lines.encode(), check=True)
    start_sshd(spec)
    say("ready")
    serve(spec)


if __name__ == "__main__":
    main()

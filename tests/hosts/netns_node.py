"""One test node: its namespaces, its accounts, its SSH server, its cable."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.node_processes import NodeProcess, is_sshd, kill_process, processes_in
from tests.hosts.ssh_files import make_key, write_sshd_config

FIRST_UID = 42001
# Folders that stay reachable in a node even where they lie under root's home.
VISIBLE = sorted({sys.base_prefix, sys.prefix, str(Path(__file__).resolve().parents[2])})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """What differs between nodes.

    `private_home` puts an own folder over /root (root's home there; other users have one elsewhere anyway),
    through which interpreter and checkout stay reachable. `shell` is the login shell of users but root.
    """

    name: str
    user: str = "root"
    port: int = 22
    private_home: bool = True
    shell: str = "/bin/bash"


class NetnsNode:
    """Started by NetnsHosts; `exec` runs in the node as root, not over SSH."""

    def __init__(self, *, spec: HostSpec, node_idx: int, address: str, cable: str, folder: Path) -> None:
        self.spec = spec
        self.name = spec.name
        self.user = spec.user
        self.port = spec.port
        self.address = address
        self.folder = folder
        self.home = folder / "home"
        self._uid = FIRST_UID + node_idx
        self._cable = cable
        self._init: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def host_public_key(self) -> Path:
        return self.folder / "host_key.pub"

    @property
    def home_inside(self) -> str:
        """Home folder as a process in the node sees it."""
        return "/root" if self.user == "root" else str(self.home)

    @property
    def init_pid(self) -> int:
        """Pid outside of the node's process 1; /proc/PID/root is the node's file system."""
        return self._pid

    def start(self, *, bridge: str, hosts_text: str, client_public_key: Path) -> None:
        """Make the namespaces, plug the cable into `bridge`, start the server; returns when it listens."""
        self._write_files(hosts_text, client_public_key)
        argv = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        script = Path(__file__).with_name("node_init.py")
        argv += [sys.executable, "-I", str(script), str(self.folder / "spec.json")]
        errors = (self.folder / "init.log").open("wb")
        with errors:
            self._init = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        self._pid = int(self._hear())
        pair = f"link add {self._cable} type veth peer name fabric0 netns {self._pid}\n"
        up = f"link set {self._cable} master {bridge}\nlink set {self._cable} up\n"
        subprocess.run(["ip", "-batch", "-"], input=(pair + up).encode(), check=True)
        self._tell("net")

    def wait_started(self) -> None:
        if self._hear() != "ready":
            raise RuntimeError(f"{self.name}: the node did not start:\n{self.log()}")

    def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the node as root; the caller looks at returncode."""
        env = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8"}
        enter = [
            "nsenter",
            "--target",
            str(self._pid),
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--wd=/",
        ]
        return subprocess.run(
            [*enter, "--", *argv], input=stdin, capture_output=True, timeout=timeout_s, env=env, check=False
        )

    def unplug(self) -> None:
        """Pull the cable: packets vanish, nothing is reset."""
        subprocess.run(["ip", "link", "set", self._cable, "down"], check=True)

    def plug(self) -> None:
        subprocess.run(["ip", "link", "set", self._cable, "up"], check=True)

    def processes(self) -> list[NodeProcess]:
        """Every process in the node except process 1 and the SSH server's."""
        return [p for p in processes_in(self._pid) if not is_sshd(p) and p.pid != self._pid]

    def sshd_processes(self) -> list[NodeProcess]:
        """The SSH server and its sessions."""
        return [p for p in processes_in(self._pid) if is_sshd(p)]

    def shm_files(self) -> list[str]:
        return self.exec(["ls", "-A", "/dev/shm"]).stdout.decode().split()

    def listening_ports(self) -> set[int]:
        """TCP ports something in the node listens on, the SSH server's left out."""
        rows = self.exec(["ss", "-Hltn"]).stdout.decode().splitlines()
        return {int(row.split()[3].rsplit(":", 1)[1]) for row in rows} - {self.port}

    def stop_sshd(self) -> None:
        """Kill the SSH server and every session of it, as a crash would."""
        for process in self.sshd_processes():
            kill_process(process.pid)
        deadline = time.monotonic() + 5
        while self.sshd_processes() and time.monotonic() < deadline:
            time.sleep(0.01)

    def start_sshd(self) -> None:
        self._tell("sshd")
        self.wait_started()

    def new_host_key(self, kind: str = "ed25519") -> None:
        """Replace the host key, as a reinstalled machine would."""
        make_key(self.folder / "host_key", kind=kind)
        self.stop_sshd()
        self.start_sshd()

    def log(self) -> str:
        """What the node's process 1 and its SSH server wrote."""
        names = ("init.log", "sshd.log")
        return "".join((self.folder / n).read_text() for n in names if (self.folder / n).exists())

    def close(self) -> None:
        """End every process of the node; its namespaces and cable go with them."""
        if self._init is None:
            return
        if self._pid:
            kill_process(self._pid)  # the kernel kills the whole PID namespace with its process 1
        kill_process(self._init.pid)
        self._init.wait()
        for pipe in (self._init.stdin, self._init.stdout):
            if pipe is not None:
                pipe.close()
        self._init = None

    def _write_files(self, hosts_text: str, client_public_key: Path) -> None:
        etc = self.folder / "etc"
        etc.mkdir(parents=True)
        self.home.mkdir(mode=0o755)
        make_key(self.folder / "host_key")
        write_sshd_config(self.folder, address=self.address, port=self.port)
        shutil.copy(client_public_key, self.folder / "authorized_keys")
        (etc / "hosts").write_text(hosts_text)
        accounts, groups = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
        if self.user != "root":
            accounts += f"{self.user}:x:{self._uid}:{self._uid}::{self.home}:{self.spec.shell}\n"
            groups += f"{self.user}:x:{self._uid}:\n"
            os.chown(self.home, self._uid, self._uid)
        (etc / "passwd").write_text(accounts)
        (etc / "group").write_text(groups)
        # "*" is a password nobody has; "!" would lock the account, keys included
        names = [line.split(":")[0] for line in accounts.splitlines()]
        (etc / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in names))
        (etc / "shadow").chmod(0o600)
        cover = self.home if self.user == "root" else self.folder / "root"
        cover.mkdir(mode=0o755, exist_ok=True)
        spec = {
            "name": self.name,
            "address": self.address,
            "port": self.port,
            "folder": str(self.folder),
            "covered_home": "/root" if self.spec.private_home else "",
            "covered_by": str(cover),
            "visible": VISIBLE,
        }
        (self.folder / "spec.json").write_text(json.dumps(spec))

    def _tell(self, word: str) -> None:
        assert self._init is not None and self._init.stdin is not None
        self._init.stdin.write(f"{word}\n".encode())
        self._init.stdin.flush()

    def _hear(self, timeout_s: float = 20.0) -> str:
        assert self._init is not None and self._init.stdout is not None
        if not select.select([self._init.stdout], [], [], timeout_s)[0]:
            raise RuntimeError(f"{self.name}: no answer in {timeout_s:.0f} s:\n{self.log()}")
        line = self._init.stdout.readline().decode().strip()
        if not line:
            raise RuntimeError(f"{self.name}: the node ended while starting:\n{self.log()}")
        return line

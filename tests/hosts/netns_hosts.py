"""N test nodes in network namespaces, joined by a bridge and reached from outside over real OpenSSH.

    with NetnsHosts(3) as hosts:
        hosts.nodes[0].address            # 10.77.0.1; node names are node1, node2, node3
        hosts.client_key, hosts.known_hosts, hosts.ssh_config, hosts.client_home

Each node has its own network, mount, UTS, IPC and PID namespaces, /dev/shm, /run, hostname, hosts file,
accounts and home; the rest of the file system is shared. Needs root. Runs at the same time take different
slots (10.77.SLOT.0/24), each guarded by a lock that the kernel frees when the test process ends, however it
ends; what a killed run left in a slot is removed by the next one that takes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import pytest

from tests.hosts.netns_node import HostSpec, NetnsNode
from tests.hosts.ssh_files import known_hosts_line, make_key

NUM_SLOTS = 50
TOOLS = ("ip", "ss", "unshare", "nsenter", "mount", "ssh-keygen", "/usr/sbin/sshd")


def why_no_netns() -> str:
    """Reason why test nodes cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "test nodes need root (network namespaces and SSH servers)"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"missing {', '.join(missing)}: apt-get install -y openssh-server iproute2 util-linux"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True)
    return "" if probe.returncode == 0 else f"namespaces are refused here: {probe.stderr.decode().strip()}"


_REASON = why_no_netns()
NETNS_MARKS = [pytest.mark.netns, pytest.mark.skipif(bool(_REASON), reason=_REASON)]


class NetnsHosts:
    """Context manager. `specs` names the nodes one by one; `count` alone makes equal ones."""

    def __init__(self, count: int = 0, *, specs: Sequence[HostSpec] = ()) -> None:
        self._specs = tuple(specs) or tuple(HostSpec(name=f"node{i + 1}") for i in range(count))
        self._lock: IO[str] | None = None
        self.nodes: list[NetnsNode] = []

    def __enter__(self) -> NetnsHosts:
        self._slot, self._lock = _take_slot()
        self.folder = Path(tempfile.gettempdir()) / f"sparkctl-netns-{self._slot}"
        self._prefix = f"spk{self._slot}"
        self.gateway = f"10.77.{self._slot}.254"
        try:
            _remove_leftovers(self._prefix, self.folder)
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> NetnsNode:
        return next(node for node in self.nodes if node.name == name)

    def close(self) -> None:
        """End every node and remove bridge, files and lock. Safe to call twice."""
        if self._lock is None:
            return
        for node in self.nodes:
            node.close()
        _remove_leftovers(self._prefix, self.folder)
        self._lock.close()
        self._lock = None

    def trust_hosts(self) -> None:
        """Write every node's present host key to known_hosts."""
        lines = [known_hosts_line(n.address, n.port, n.host_public_key) for n in self.nodes]
        self.known_hosts.write_text("".join(lines))

    def _start(self) -> None:
        self.folder.mkdir(mode=0o755)
        self.client_home = self.folder / "client"
        dot_ssh = self.client_home / ".ssh"
        dot_ssh.mkdir(parents=True, mode=0o700)
        self.client_key = make_key(dot_ssh / "id_ed25519")
        self.known_hosts = dot_ssh / "known_hosts"
        self.ssh_config = dot_ssh / "config"
        bridge = f"{self._prefix}br"
        lines = (
            f"link add {bridge} type bridge\naddr add {self.gateway}/24 dev {bridge}\nlink set {bridge} up\n"
        )
        subprocess.run(["ip", "-batch", "-"], input=lines.encode(), check=True)
        addresses = [f"10.77.{self._slot}.{i + 1}" for i in range(len(self._specs))]
        names = [spec.name for spec in self._specs]
        hosts_text = "127.0.0.1 localhost\n::1 localhost\n"
        hosts_text += "".join(f"{a} {n}\n" for a, n in zip(addresses, names, strict=True))
        for i, spec in enumerate(self._specs):
            folder = self.folder / "nodes" / spec.name
            cable = f"{self._prefix}v{i + 1}"
            self.nodes.append(
                NetnsNode(spec=spec, node_idx=i, address=addresses[i], cable=cable, folder=folder)
            )
        public_key = self.client_key.with_suffix(".pub")
        for node in self.nodes:
            node.start(bridge=bridge, hosts_text=hosts_text, client_public_key=public_key)
        for node in self.nodes:
            node.wait_started()
        self.trust_hosts()
        self._write_ssh_config()

    def _write_ssh_config(self) -> None:
        blocks = [
            f"Host {n.name}\n  HostName {n.address}\n  User {n.user}\n  Port {n.port}\n"
            f"  IdentityFile {self.client_key}\n  UserKnownHostsFile {self.known_hosts}\n"
            for n in self.nodes
        ]
        self.ssh_config.write_text("\n".join(blocks))
        self.ssh_config.chmod(0o600)


def _take_slot() -> tuple[int, IO[str]]:
    for slot in range(NUM_SLOTS):
        lock = (Path(tempfile.gettempdir()) / f"sparkctl-netns-{slot}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return slot, lock
        except BlockingIOError:
            lock.close()
    raise RuntimeError(f"all {NUM_SLOTS} slots for test nodes are taken")


def _remove_leftovers(prefix: str, folder: Path) -> None:
    """Processes, interfaces and files of an earlier run in this slot. The caller holds the slot's lock."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_init_of(entry, folder):
            os.kill(int(entry.name), signal.SIGKILL)
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    for name in [link["ifname"] for link in links]:
        if name == f"{prefix}br" or name.startswith(f"{prefix}v"):
            # a cable vanishes by itself while its node ends, so failing to delete it is no error
            subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise RuntimeError(f"{folder} of an earlier run cannot be removed; is something mounted in it?")


def _is_init_of(process: Path, folder: Path) -> bool:
    try:
        argv = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(a.endswith(b"node_init.py") for a in argv) and any(
        a.startswith(f"{folder}/".encode()) for a in argv
    )

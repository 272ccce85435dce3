"""A cluster of test nodes (network namespaces with SSH servers)
as its user sees it: a topology and a recipe.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.sparkctl_process import Sparkctl
from tests.hosts import HostSpec, NetnsHosts, NetnsNode, NodeProcess

API_PORT = 30000
FREEZE_TIMEOUT_S = 6.0  # a busy machine answers `status` within it
PEER_TIMEOUT_S = 6.0


def node_specs(count: int) -> list[HostSpec]:
    """The engine's environment must stay visible in the nodes, also where it lies under /root."""
    hidden = Path("/root") in (Path(sys.prefix).resolve() / "bin").parents
    return [HostSpec(name=f"node{i + 1}", private_home=not hidden) for i in range(count)]


@dataclass(slots=True)
class SshCluster:
    """Three nodes, and the machine that starts runs on them."""

    hosts: NetnsHosts
    sparkctl: Sparkctl
    folder: Path
    models: Path

    @property
    def topology(self) -> Path:
        return self.folder / "topology.yaml"

    @property
    def address(self) -> str:
        """Where the head serves its API, reachable from outside."""
        return f"http://{self.hosts.nodes[0].address}:{API_PORT}"

    def write_topology(self, **changes: dict[str, Any]) -> None:
        """`changes`: node name -> keys merged into that node."""
        nodes = []
        for host in self.hosts.nodes:
            node: dict[str, Any] = {
                "name": host.name,
                "ssh": {
                    "host": host.address,
                    "port": host.port,
                    "user": host.user,
                    "identity_file": str(self.hosts.client_key),
                    "known_hosts_file": str(self.hosts.known_hosts),
                },
                "fabric": {"address": host.address, "interface": "fabric0"},
                "paths": {"state": str(state_path(host)), "cache": str(host.folder / "cache")},
            }
            for key, value in changes.get(host.name, {}).items():
                node[key] = {**node[key], **value}
            nodes.append(node)
        document = {
            "schema_version": 1,
            "name": "test-nodes",
            "links": {"layout": "switch", "mtu": 1500},
            "defaults": {"paths": {"engine": sys.prefix, "models": str(self.models)}},
            "nodes": nodes,
        }
        self.topology.write_text(yaml.safe_dump(document, sort_keys=False))

    def recipe(self, num_nodes: int) -> str:
        """A copy of the local recipe for these nodes; its API is exposed, so it needs a key."""
        path = self.folder / f"exposed-{num_nodes}x.yaml"
        document = {
            "schema_version": 1,
            "name": f"exposed-{num_nodes}x",
            "extends": "local",
            "parallelism": {"nodes": num_nodes, "tp": num_nodes},
            "server": {"host": self.hosts.nodes[0].address, "port": API_PORT},
            "limits": {
                "freeze_timeout_s": FREEZE_TIMEOUT_S,
                "peer_timeout_s": PEER_TIMEOUT_S,
                "ready_timeout_s": 230,
            },
        }
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return str(path)

    def inputs(self, num_nodes: int) -> tuple[str, ...]:
        return ("--recipe", self.recipe(num_nodes), "--topology", str(self.topology))

    def unprobed(self, num_nodes: int) -> tuple[str, ...]:
        """Without all-reduces before the start, which cost seconds: for tests of what comes after them."""
        return (*self.inputs(num_nodes), "--skip", "collective")

    def assert_nothing_left(self, timeout_s: float = 60.0) -> None:
        """Every node as it was before: no process, no shared memory, no port. Seen from outside the nodes."""
        deadline = time.monotonic() + timeout_s
        while any(host.processes() for host in self.hosts.nodes) and time.monotonic() < deadline:
            time.sleep(0.05)
        for host in self.hosts.nodes:
            assert not host.processes(), host.processes()
            assert not host.shm_files(), host.shm_files()
            assert not host.listening_ports(), host.listening_ports()
        assert not temp_links(self.hosts.folder), "the link to the engine's temporary files was left"

    def reset(self) -> None:
        """Whatever a test did: cables in, nothing running, all hosts trusted."""
        for host in self.hosts.nodes:
            host.plug()
        self.sparkctl.run("down", "--all", timeout_s=60)
        self.sparkctl.close()
        for host in self.hosts.nodes:
            for process in host.processes():
                subprocess.run(["kill", "-KILL", str(process.pid)], check=False, capture_output=True)
            host.exec(["sh", "-c", "umount -q " + str(state_path(host)) + "; rm -rf /dev/shm/*"])
            shutil.rmtree(state_path(host), ignore_errors=True)
        self.sparkctl.started.clear()
        shutil.rmtree(self.sparkctl.home / ".local", ignore_errors=True)
        self.hosts.trust_hosts()
        self.write_topology()


def temp_links(folder: Path) -> list[Path]:
    """Links in /tmp to something below `folder`."""
    links = [path for path in Path("/tmp").glob("sparkctl-*") if path.is_symlink()]
    return [link for link in links if folder in link.readlink().parents]


def state_path(host: NetnsNode) -> Path:
    return host.folder / "state"


def find(host: NetnsNode, what: str) -> NodeProcess:
    """The node's only process of that kind: "scheduler", "engine" (its main process) or "supervisor"."""
    found = [process for process in host.processes() if kind_of(process, host) == what]
    assert len(found) == 1, (what, host.processes())
    return found[0]


def kind_of(process: NodeProcess, host: NetnsNode) -> str:
    title = " ".join(process.argv)
    if title.startswith("sglang::scheduler"):
        return "scheduler"
    if title.startswith("sglang::"):
        return "helper"
    if "node.pyz supervise" in title:
        return "supervisor"
    if "sglang.launch_server" in title:
        supervisors = {p.pid for p in host.processes() if "node.pyz supervise" in " ".join(p.argv)}
        try:
            stat = Path(f"/proc/{process.pid}/stat").read_text()
        except OSError:  # ended since it was listed
            return ""
        parent = int(stat.rsplit(")", 1)[1].split()[1])
        return "engine" if parent in supervisors else "child"
    return "other"


def wait_until_empty(host: NetnsNode, timeout_s: float) -> float:
    """Seconds until nothing runs on the node."""
    started = time.monotonic()
    while host.processes():
        assert time.monotonic() - started < timeout_s, host.processes()
        time.sleep(0.05)
    return time.monotonic() - started

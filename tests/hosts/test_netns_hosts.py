"""The test nodes keep their promises: separate, and gone afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts import NETNS_MARKS, HostSpec, NetnsHosts

pytestmark = [*NETNS_MARKS, pytest.mark.timeout(60)]
ROOT = Path(__file__).parents[2]


def interfaces(prefix: str) -> set[str]:
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    return {link["ifname"] for link in links if link["ifname"].startswith(prefix)}


def test_nodes_are_separate_machines() -> None:
    with NetnsHosts(specs=[HostSpec(name="a"), HostSpec(name="b", user="ann", port=2222)]) as hosts:
        a, b = hosts.nodes
        a.exec(["sh", "-c", "echo x > /dev/shm/mine; echo y > /root/file"])
        assert a.shm_files() == ["mine"]
        assert b.shm_files() == []
        assert a.exec(["hostname"]).stdout == b"a\n"
        assert (a.home / "file").read_text() == "y\n"
        assert a.exec(["getent", "hosts", "b"]).stdout.decode().split()[0] == b.address
        assert a.exec(["ls", "/sys/class/net"]).stdout.split() == [b"fabric0", b"lo"]
        assert (a.processes(), a.listening_ports()) == ([], set())
        argv = ["ssh", "-F", str(hosts.ssh_config), "b", f"exec {sys.executable} -m http.server 8123"]
        server = subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while 8123 not in b.listening_ports():
            time.sleep(0.05)
        assert [p.argv[1:] for p in b.processes()] == [("-m", "http.server", "8123")]
        fetch = (
            f"import sys, urllib.request as u; u.urlopen('http://{b.address}:8123', timeout=int(sys.argv[1]))"
        )
        assert a.exec([sys.executable, "-c", fetch, "60"]).returncode == 0
        b.unplug()
        assert a.exec([sys.executable, "-c", fetch, "1"]).returncode == 1
        b.plug()
        server.kill()
        server.wait()


def test_killed_run_leaves_nothing_that_lasts() -> None:
    code = """
import time
from tests.hosts import NetnsHosts
with NetnsHosts(2) as hosts:
    hosts["node1"].exec(["sh", "-c", "sleep 61 >&- 2>&- &"])
    print(hosts.folder, hosts.gateway, len(hosts["node1"].processes()), flush=True)
    time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    folder, gateway, num_processes = child.stdout.readline().split()
    assert num_processes == "1"
    slot = gateway.split(".")[2]
    assert interfaces(f"spk{slot}") == {f"spk{slot}br", f"spk{slot}v1", f"spk{slot}v2"}
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 60
    while interfaces(f"spk{slot}v") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert interfaces(f"spk{slot}v") == set()  # the nodes ended by themselves
    assert subprocess.run(["pgrep", "-f", folder], check=False, capture_output=True).stdout == b""
    with NetnsHosts(1) as hosts:  # takes the first free slot: this one, unless a lower one was freed
        pass
    if str(hosts.folder) == folder:
        assert interfaces(f"spk{slot}") == set()
        assert not Path(folder).exists()


def test_two_runs_at_once_do_not_meet() -> None:
    with NetnsHosts(1) as one, NetnsHosts(1) as two:
        assert one.folder != two.folder
        assert one.nodes[0].address != two.nodes[0].address
        for hosts in (one, two):
            argv = ["ssh", "-F", str(hosts.ssh_config), "-o", "BatchMode=yes", "node1", "hostname"]
            assert subprocess.run(argv, capture_output=True, check=True).stdout == b"node1\n"

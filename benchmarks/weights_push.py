"""Measure `sparkctl weights push` between two nodes in network namespaces, against a line and against rsync.

    python -m benchmarks.weights_push limited     node1's end of the cable shaped to 1 Gbit/s (tc tbf)
    python -m benchmarks.weights_push unlimited   push and rsync in turn on the cable as it is

A push is the whole command: Python's start, SSH, the list, the space check, the copy with sha256, fsync and
the manifest. rsync (-a --whole-file, over ssh with its default cipher) is the whole command too, without
hashes that last and without fsync.
Both directories are in memory (tmpfs), so that the figures are the network's and the CPU's, not this disk's.
Every copy is compared byte by byte afterwards. Needs root, OpenSSH and rsync.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from launcher.topology import Topology
from tests.hosts import NetnsHosts
from tests.hosts.netns_hosts import why_no_netns
from tests.launcher.doctor.netns_cluster import netns_topology
from tests.launcher.weights.checkpoints import INDEX, write_shard

NUM_SHARDS = 8
LINE_BITS_PER_S = 1e9
BARS = {"limited": 0.90, "unlimited": 0.85}
TBF = "tc qdisc add dev fabric0 root tbf rate 1gbit burst 256kb latency 50ms"


def write_checkpoint(directory: Path, total_bytes: int) -> None:
    directory.mkdir()
    weight_map: dict[str, str] = {}
    for i in range(NUM_SHARDS):
        name, tensor = f"model-{i + 1:05}-of-{NUM_SHARDS:05}.safetensors", f"layers.{i}.weight"
        write_shard(directory / name, {tensor: total_bytes // NUM_SHARDS})
        weight_map[tensor] = name
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (directory / "config.json").write_text("{}")


def sparkctl(verb: str, topology: Path, *words: str) -> float:
    """Seconds of the whole command."""
    argv = [sys.executable, "-m", "launcher", "weights", verb]
    argv += ["--topology", str(topology), "--model-path", "m"]
    started = time.monotonic()
    done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"weights {verb} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.monotonic() - started


def rsync(hosts: NetnsHosts) -> float:
    source, target = hosts.nodes
    shell = f"ssh -i {hosts.client_key} -o BatchMode=yes -o UserKnownHostsFile={hosts.known_hosts}"
    argv = ["rsync", "-a", "--whole-file", "-e", shell, "models/m/", f"root@{target.address}:models/m/"]
    started = time.monotonic()
    done = source.exec(["sh", "-c", 'cd /root && exec "$@"', "rsync", *argv], timeout_s=300)
    if done.returncode:
        raise RuntimeError(f"rsync ended with {done.returncode}: {done.stderr.decode()}")
    return time.monotonic() - started


def check_copy(hosts: NetnsHosts, names: list[str]) -> None:
    """Through /proc: the nodes' memory file systems are in their own mount namespaces."""
    source, target = (Path(f"/proc/{node.init_pid}/root/root/models/m") for node in hosts.nodes)
    _, differ, missing = filecmp.cmpfiles(source, target, names, shallow=False)
    if differ or missing:
        raise RuntimeError(f"the copy differs: {differ}, {missing}")


def run(mode: str, *, rounds: int, total_bytes: int, mtu: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="sparkctl-push-") as name, NetnsHosts(2) as hosts:
        topology = Path(name) / "topology.yaml"
        spec: Topology = netns_topology(hosts)
        topology.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True)))
        for node in hosts.nodes:
            sh(hosts, node.name, "mkdir -p /root/models && mount -t tmpfs -o size=90% tmpfs /root/models")
            set_mtu(hosts, node.name, mtu)
        write_checkpoint(Path(f"/proc/{hosts.nodes[0].init_pid}/root/root/models/m"), total_bytes)
        hash_s = sparkctl("fetch", topology, "--from", "m")
        if mode == "limited":
            sh(hosts, "node1", TBF)
        names = sorted(path.name for path in source_files(hosts))
        for i in range(rounds):
            for tool in ("push", "rsync") if mode == "unlimited" else ("push",):
                sh(hosts, "node2", "rm -rf /root/models/m && mkdir /root/models/m")
                wall_s = sparkctl("push", topology) if tool == "push" else rsync(hosts)
                found.append({"mode": mode, "round": i, "tool": tool, "wall_s": round(wall_s, 3),
                              "bytes": sum(path.stat().st_size for path in source_files(hosts)),
                              "first_hash_s": round(hash_s, 3), "mtu": mtu})  # fmt: skip
                print(json.dumps(found[-1]), flush=True)
        check_copy(hosts, names)
    return found


def source_files(hosts: NetnsHosts) -> list[Path]:
    folder = Path(f"/proc/{hosts.nodes[0].init_pid}/root/root/models/m")
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def set_mtu(hosts: NetnsHosts, name: str, mtu: int) -> None:
    """Both ends of the node's cable; the bridge takes the smallest of its ports."""
    sh(hosts, name, f"ip link set fabric0 mtu {mtu}")
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    prefix = f"spk{hosts.gateway.split('.')[2]}v"
    for link in links:
        if link["ifname"].startswith(prefix):
            subprocess.run(["ip", "link", "set", link["ifname"], "mtu", str(mtu)], check=True)


def sh(hosts: NetnsHosts, name: str, line: str) -> None:
    done = hosts[name].exec(["sh", "-c", line])
    if done.returncode:
        raise RuntimeError(f"{name}: {line}: {done.stderr.decode()}")


def summarise(mode: str, found: list[dict[str, Any]], load: float) -> dict[str, Any]:
    rates = {
        tool: [8 * item["bytes"] / item["wall_s"] for item in found if item["tool"] == tool]
        for tool in dict.fromkeys(item["tool"] for item in found)
    }
    median = {tool: statistics.median(values) for tool, values in rates.items()}
    ratio = median["push"] / (LINE_BITS_PER_S if mode == "limited" else median["rsync"])
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(line for line in lines if line.startswith("model name"))
    return {
        "mode": mode,
        "mtu": found[0]["mtu"],
        "bytes": found[0]["bytes"],
        "median_gbit_per_s": {tool: round(value / 1e9, 3) for tool, value in median.items()},
        "spread_gbit_per_s": {
            tool: [round(min(v) / 1e9, 3), round(max(v) / 1e9, 3)] for tool, v in rates.items()
        },
        "ratio": round(ratio, 3),
        "ratio_of": "1 Gbit/s line" if mode == "limited" else "rsync over ssh, same run",
        "bar": BARS[mode],
        "machine": {"cpu": cpu.split(":")[1].strip(), "cpus": os.cpu_count(), "kernel": platform.release(),
                    "load_before": load, "python": platform.python_version()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=sorted(BARS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if reason := why_no_netns():
        raise SystemExit(reason)
    load = os.getloadavg()[0]
    found = run(options.mode, rounds=options.rounds, total_bytes=int(options.gib * 2**30), mtu=options.mtu)
    summary = summarise(options.mode, found, load)
    print(json.dumps(summary, indent=2))
    if options.output:
        name = f"{options.mode}-mtu{options.mtu}"
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / f"{name}-raw.json").write_text(json.dumps(found, indent=2) + "\n")
        (options.output / f"{name}-summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if summary["ratio"] < summary["bar"]:
        sys.exit(1)


if __name__ == "__main__":
    main()

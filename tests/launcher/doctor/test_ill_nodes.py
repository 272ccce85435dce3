"""One recorded ill node in a healthy cluster: the check that must say so, with node, evidence and fix, and no other.

`report`: entries of docs/field-reports.md (F...) and rows of the list of ill readings (S-...) that a case reproduces.
"""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.doctor.node_report import NodeReport
from launcher.node.weights_manifest import new_manifest, stamp_of, write_manifest
from tests.launcher.doctor.clusters import (
    P0,
    P0_TWIN,
    P1,
    case_of,
    ill_case,
    problems,
    report_of,
    topology_for,
    tree_of,
)
from tests.launcher.doctor.spark_tree import HOME, IDENTITY, LIMITS, SparkTree

GIB_KB = 1 << 20


@dataclass(frozen=True)
class Ill:
    report: str
    check: str
    level: str
    alter: Callable[[SparkTree], Any]
    words: str
    fix: str
    layout: str = "pair"
    also: tuple[str, ...] = ()  # checks that rightly say something too
    changes: dict[str, Any] = field(default_factory=dict)
    name: str = ""


def _each(*steps: Callable[[SparkTree], Any]) -> Callable[[SparkTree], None]:
    def alter(tree: SparkTree) -> None:
        for step in steps:
            step(tree)

    return alter


def _nothing(tree: SparkTree) -> None:
    """The node is well; its settings are not."""


def _kernel(release: str) -> Callable[[SparkTree], None]:
    return lambda tree: tree.write("/proc/sys/kernel/osrelease", release)


def _driver(version: str) -> Callable[[SparkTree], None]:
    return _each(
        lambda tree: tree.write("/sys/module/nvidia/version", version),
        lambda tree: tree.tool("dpkg-query", f"ii  {version}-0ubuntu0.24.04.1"),
    )


def _log(line: str) -> Callable[[SparkTree], None]:
    return lambda tree: tree.log(line)


def _no_ports(tree: SparkTree) -> None:
    tree.remove("/sys/class/infiniband")
    for port in (P0, P0_TWIN, P1, "enP2p1s0f1np1"):
        tree.remove(f"/sys/class/net/{port}")
    tree.network({"wlP9s9": "192.0.2.77/24"})
    tree.write("/etc/nvidia/cx7-hotplug-enabled", "")


def _wrong_cage(tree: SparkTree) -> None:
    """The cable is in the other connector."""
    tree.addresses = {P1: "192.168.100.2/24", "enP2p1s0f1np1": "192.168.101.2/24"}
    for port in (P0, P0_TWIN):
        tree.port(port, is_up=False, mtu=9000)
    for port, address in tree.addresses.items():
        tree.port(port, is_up=True, address=address)
    tree.network(tree.addresses)


def _one_subnet(tree: SparkTree) -> None:
    addresses = {P0: "192.168.100.2/24", P0_TWIN: "192.168.100.6/24"}
    tree.gids(P0_TWIN, addresses[P0_TWIN], 3)
    tree.network(addresses)


def _no_twin_address(tree: SparkTree) -> None:
    tree.gids(P0_TWIN, None, 3)
    tree.network({P0: "192.168.100.2/24"})


def _link_local(tree: SparkTree) -> None:
    tree.gids(P0_TWIN, "169.254.9.9", 3)
    tree.network({P0: "192.168.100.2/24", P0_TWIN: "169.254.9.9/16"})


def _lost_addresses(tree: SparkTree) -> None:
    tree.remove("/etc/netplan/40-cx7.yaml")
    for port in (P0, P0_TWIN):
        tree.gids(port, None, 3)
    tree.network({})


def _renamed(tree: SparkTree) -> None:
    """NixOS and other systems call them mlx5_0 and mlx5_1."""
    verbs = tree.root / "sys/class/infiniband"
    for old, new in (("rocep1s0f0", "mlx5_0"), ("roceP2p1s0f0", "mlx5_1")):
        (verbs / old).rename(verbs / new)
    text = tree.read("/usr/bin/ibv_devinfo")
    tree.program(
        "/usr/bin/ibv_devinfo", text.replace("roceP2p1s0f0", "mlx5_1").replace("rocep1s0f0", "mlx5_0")
    )


def _route(tree: SparkTree) -> None:
    tree.network(tree.addresses, routes={tree.peers["spark-a"]: {"dev": "wlP9s9", "prefsrc": "192.0.2.77"}})


def _one_mac(tree: SparkTree) -> None:
    rows: list[dict[str, object]] = [
        {"dst": "192.168.100.1", "dev": P0, "lladdr": "02:00:5e:00:01:01", "state": ["REACHABLE"]},
        {"dst": "192.168.100.5", "dev": P0, "lladdr": "02:00:5e:00:01:01", "state": ["STALE"]},
    ]
    tree.network(tree.addresses, neighbours=rows)


def _arp_failed(tree: SparkTree) -> None:
    rows: list[dict[str, object]] = [{"dst": "192.168.100.1", "dev": P0, "state": ["FAILED"]}]
    tree.network(tree.addresses, neighbours=rows)


def _content(package: str) -> Callable[[SparkTree], None]:
    content = {**IDENTITY["content"], package: {"sha256": "d" * 64, "num_files": 4659}}  # type: ignore[dict-item]
    return lambda tree: tree.engine(content=content)


def _version(name: str, version: str) -> Callable[[SparkTree], None]:
    return lambda tree: tree.engine(versions={**IDENTITY["versions"], name: version})  # type: ignore[dict-item]


def _two_nccl(tree: SparkTree) -> None:
    tree.write("/opt/nccl/lib/libnccl.so.2", "")


def _earlyoom(tree: SparkTree) -> None:
    tree.program("/usr/bin/earlyoom", "#!/bin/sh\n")
    line = 'earlyoom: sending SIGTERM to process 4711 uid 1000 "sglang::schedul": badness 1100'
    tree.tool("journalctl", {"-k *": "Linux version", "-t earlyoom *": line})


def _model(path: str, text: str) -> Callable[[SparkTree], None]:
    return lambda tree: tree.write(f"{HOME}/models/m/{path}", text)


def _disk(part: str, row: str) -> Callable[[SparkTree], None]:
    return lambda tree: tree.disks({part: row})


def _firmware(tree: SparkTree) -> None:
    for hca in ("rocep1s0f0", "roceP2p1s0f0"):
        tree.write(f"/sys/class/infiniband/{hca}/fw_ver", "28.47.1088")


def _pcie(name: str, value: str) -> Callable[[SparkTree], None]:
    return lambda tree: tree.write(f"/sys/class/net/{P0}/device/current_link_{name}", value)


FULL = "/ ext4 3936818806784 0 244191232 243000000"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 10737418240\n"
GPU_ROW = "0, NVIDIA GB10, 580.142, {pstate}, {clock}, {most}, {app}, {mask}, {power}, {heat}, {load}"


def _gpu(**values: object) -> Callable[[SparkTree], None]:
    healthy = {
        "pstate": "P8",
        "clock": 208,
        "most": 3003,
        "app": 2418,
        "mask": "0x1",
        "power": 4,
        "heat": 36,
        "load": 0,
    }
    return lambda tree: tree.gpu(GPU_ROW.format(**(healthy | values)))


CASES = [
    # ---- kernel and driver
    Ill("F19 S-kernel", "known-bad", "refuse", _kernel("7.0.0-1019-nvidia"), "kernel 7.0.0-1019-nvidia", "kho=off", also=("same-kernel",)),
    Ill("F19", "known-bad", "refuse", _kernel("7.0.0-31-generic"), "7.0.0-31-generic", "kho=off", also=("same-kernel",), name="hwe"),
    Ill("S-kernel", "known-bad", "warn", _kernel("6.14.0-1015-nvidia"), "6.14.0-1015", "6.17", also=("same-kernel",), name="slow copies"),
    Ill("S-kernel", "known-bad", "warn", _driver("580.159.03"), "580.159.03", "580.173.02", also=("same-kernel",), name="driver"),
    Ill("S-kernel", "known-bad", "warn", _driver("610.12"), "610.12", "nvidia-driver-580-open", also=("same-kernel",), name="branch"),
    Ill("F19 S-cma", "cma", "refuse", lambda t: t.memory(CmaTotal=0, CmaFree=940604), "got 940604 of 0 kB", "kho=off"),
    Ill("S-driver-reboot", "driver-loaded", "refuse", lambda t: t.tool("dpkg-query", "ii  580.159.03-0ubuntu1"), "580.142 is loaded, 580.159.03 is installed", "reboot"),
    Ill("S-no-gpu", "driver-loaded", "refuse", lambda t: t.remove("/sys/module/nvidia/version"), "no NVIDIA driver is loaded", "modprobe", also=("same-kernel",)),
    Ill("S-next-kernel", "next-kernel", "warn", lambda t: t.write("/boot/vmlinuz-6.17.0-1026-nvidia", ""), "6.17.0-1026-nvidia has no nvidia.ko", "linux-modules-nvidia"),
    Ill("F84 S-software", "same-kernel", "warn", _driver("580.173.02"), "spark-a 580.142, spark-b 580.173.02", "apt"),
    Ill("S-xid", "xid", "warn", _log("NVRM: Xid (PCI:000f:01:00): 119, pid=77, Timeout after 6s of waiting for RPC"), "119", "reboot"),
    Ill("S-pcie", "aer", "warn", _log("pcieport 0000:00:00.0: AER: Corrected error message received from 0000:01:00.0"), "AER: Corrected", "cable"),
    Ill("F47 F48 S-oom", "out-of-memory", "warn", _log("Out of memory: Killed process 881 (sglang::schedul) total-vm:1kB, anon-rss:1kB"), "Killed process 881", "loader"),
    Ill("S-earlyoom", "out-of-memory", "warn", _earlyoom, "sending SIGTERM to process 4711", "memory"),
    Ill("F17 F43 S-nv-memory", "gpu-memory-log", "warn", lambda t: t.log(*["NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"] * 80), "80 lines", "chunked_prefill_size"),
    Ill("S-firmware", "nic-firmware", "refuse", _log("mlx5_core 0000:01:00.0: mlx5_function_setup: firmware pre-init failed, error -110"), "pre-init", "power"),
    Ill("S-replug", "cable-log", "warn", _log("mlx5_core 0000:01:00.0 enp1s0f0np0: Link down"), "Link down", "reboot"),
    Ill("", "disk-log", "warn", _log("nvme0n1: I/O error, dev nvme0n1, sector 77"), "sector 77", "smart-log"),
    Ill("", "kernel-log", "warn", _each(lambda t: t.remove("/usr/bin/journalctl"), lambda t: t.tool("dmesg", "", status=1, stderr="dmesg: read kernel buffer failed: Operation not permitted")), "Operation not permitted", "adm"),
    # ---- memory and limits
    Ill("F44 F52 S-stale-engine", "memory", "warn", _each(lambda t: t.memory(MemAvailable=19 * GIB_KB, MemFree=19 * GIB_KB), lambda t: t.process(900, "python3", "python3 train.py", 90 * GIB_KB)), "python3 (pid 900) 90.0 GiB", "end what holds it"),
    Ill("F44 S-page-cache", "page-cache", "warn", lambda t: t.memory(MemFree=40 * GIB_KB, Cached=77 * GIB_KB), "77.0 GiB are page cache", "drop-cache"),
    Ill("F48 S-swap", "swap", "warn", lambda t: t.memory(SwapFree=11 * GIB_KB), "5.0 GiB of 16.0 GiB swap are in use", "swapoff"),
    Ill("F53", "desktop", "warn", _each(lambda t: t.process(700, "gnome-shell", "/usr/bin/gnome-shell", 3 * GIB_KB), lambda t: t.process(701, "Xorg", "Xorg", GIB_KB)), "Xorg, gnome-shell run and hold 4.0 GiB", "multi-user.target"),
    Ill("F13 F14 S-stale-engine", "other-engine", "refuse", lambda t: t.process(881, "sglang::schedul", "sglang::scheduler_TP1", 2 * GIB_KB), "sglang::scheduler_TP1 (pid 881)", "sparkctl down"),
    Ill("S-memlock", "memlock", "refuse", lambda t: t.write("/proc/self/limits", LIMITS.replace("130000000000", "8388608     ")), "got 8388608 bytes", "limits.d"),
    Ill("", "open-files", "warn", lambda t: t.write("/proc/self/limits", LIMITS.replace("1048576", "512    ")), "got 512", "nofile"),
    Ill("S-clock-skew", "clock", "warn", lambda t: t.tool("timedatectl", "no"), "NTPSynchronized=no", "set-ntp"),
    # ---- GPU
    Ill("S-no-gpu", "gpu", "refuse", lambda t: t.tool("nvidia-smi", "No devices were found", status=6), "No devices were found", "nvidia-smi"),
    Ill("S-driver-reboot", "gpu", "refuse", lambda t: t.tool("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", status=18), "version mismatch", "reboot"),
    Ill("F13 S-stale-engine", "gpu-busy", "refuse", lambda t: t.gpu(processes="881, sglang::scheduler, 76912"), "process 881 (sglang::scheduler) holds 75.1 GiB", "sparkctl down"),
    Ill("F84 S-clock-low", "gpu-clock", "warn", _gpu(pstate="P0", clock=851, load=96, power=16), "got 851 MHz at 16 W", "unplug"),
    Ill("F84 S-clocks-differ", "same-clocks", "warn", _gpu(app=2190), "spark-a 2418 MHz, spark-b 2190 MHz", "nvidia-smi"),
    Ill("S-throttle", "throttle", "warn", _gpu(mask="0x0000000000000004", heat=88), "software power cap", "power supply"),
    # ---- ports
    Ill("F20", "hca", "refuse", _renamed, "the node has mlx5_0 (enp1s0f0np0", "ibdev2netdev", also=("same-firmware",)),
    Ill("S-uncabled", "hca", "refuse", _no_ports, "hot-plug is on", "plug the cable in", also=("environment", "route", "same-firmware")),
    Ill("S-cable-one-end", "port-state", "refuse", lambda t: t.port(P0_TWIN, is_up=False, address="192.168.101.2/24", mtu=9000), "roceP2p1s0f0 must be 4: ACTIVE, got 1: DOWN, 3: Disabled", "both ends"),
    Ill("F30 S-wrong-cage", "port-state", "refuse", _wrong_cage, "active: roceP2p1s0f1, rocep1s0f1", "name the port", also=("gid", "environment", "route")),
    Ill("F21 S-gid-moved", "gid", "refuse", lambda t: t.gids(P0, "192.168.100.2", 5), "fabric.gid_index 3 of rocep1s0f0 must be RoCE v2, it is an empty slot; usable: 5 192.168.100.2", "gid_index", changes={"fabric": {"gid_index": 3}}),
    Ill("F21", "gid", "refuse", _nothing, "must have a RoCE v2 GID of 192.0.2.2, got 3 192.168.100.2", "fabric.address", changes={"fabric": {"address": "192.0.2.2"}}, name="address of the LAN"),
    Ill("S-gid-moved", "gid", "refuse", lambda t: t.write("/sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/3", "IB/RoCE v1"), "must have a RoCE v2 GID with an IPv4 address, got none", "address", name="v1"),
    Ill("S-twin-address", "port-address", "refuse", _no_twin_address, "enP2p1s0f0np0 is up and has no IPv4 address", "netplan", also=("gid",)),
    Ill("S-address-lost", "port-address", "refuse", _lost_addresses, "/etc/netplan has no file", "40-cx7.yaml", also=("gid", "environment", "route")),
    Ill("S-address-lost", "port-address", "warn", _link_local, "has only 169.254.9.9/16", "netplan", name="link-local"),
    Ill("S-twin-unused", "twins", "warn", _nothing, "enP2p1s0f0np0 is the twin of a used port (p0)", "fabric.hcas", changes={"fabric": {"hcas": ["rocep1s0f0"]}}),
    Ill("S-one-subnet", "twin-subnets", "refuse", _one_subnet, "enP2p1s0f0np0 and enp1s0f0np0 are both in 192.168.100.0/24", "arp_ignore"),
    Ill("F22 S-mtu-unequal", "mtu", "refuse", lambda t: t.write(f"/sys/class/net/{P0}/mtu", "1500"), "MTU of enp1s0f0np0 must be 9000 as on the other ends, got 1500", "netplan"),
    Ill("F22 S-mtu-1500", "mtu", "warn", lambda t: t.devinfo(**{P0: "1024 (3)"}), "active_mtu of rocep1s0f0 must be 4096 with MTU 9000, got 1024", "ip link"),
    Ill("S-100g", "link-speed", "warn", lambda t: t.write(f"/sys/class/net/{P0}/speed", "100000"), "must run at 200000 Mb/s, got 100000", "cable"),
    Ill("S-pcie", "pcie-link", "warn", _pcie("speed", "16.0 GT/s PCIe"), "got 16.0 GT/s PCIe x4", "unplug"),
    Ill("S-pcie", "pcie-link", "warn", _pcie("width", "2"), "got 32.0 GT/s PCIe x2", "unplug", name="width"),
    Ill("S-firmware", "same-firmware", "warn", _firmware, "spark-a 28.45.4028, spark-b 28.47.1088", "update"),
    # ---- network
    Ill("F34 F35", "environment", "refuse", _nothing, "got 'eth7'", "socket_interface", changes={"fabric": {"socket_interface": "eth7"}}),
    Ill("F35", "environment", "refuse", lambda t: t.network({P0: "192.168.100.2/24", P0_TWIN: "192.168.101.2/24"}), "wlP9s9 has none", "topology", changes={"fabric": {"socket_interface": "wlP9s9"}}, name="no address"),
    Ill("F21 F29", "fabric-is-lan", "refuse", _nothing, "got enP7s7 (driver r8127)", "fabric.interface", also=("gid", "route", "mtu"), changes={"fabric": {"interface": "enP7s7", "address": "192.0.2.2"}}),
    Ill("F29 S-wifi", "route", "refuse", _route, "the route to 192.168.100.1 must leave by enP2p1s0f0np0 or enp1s0f0np0, got wlP9s9 from 192.0.2.77", "ip route get"),
    Ill("S-one-subnet", "neighbours", "warn", _one_mac, "192.168.100.1 and 192.168.100.5 have one MAC", "neigh flush"),
    Ill("S-one-subnet", "neighbours", "warn", _arp_failed, "192.168.100.1 does not answer ARP", "neigh", name="failed"),
    Ill("S-firewall", "firewall", "warn", lambda t: t.write("/etc/ufw/ufw.conf", "ENABLED=yes"), "ENABLED=yes", "ufw allow"),
    Ill("S-forward-drop", "forwarding", "warn", lambda t: t.tool("iptables", "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER"), "policy is DROP", "DOCKER-USER", layout="ring"),
    Ill("F38 S-no-infiniband", "verbs-devices", "refuse", lambda t: t.remove("/dev/infiniband"), "got nothing", "modprobe"),
    Ill("F26", "nccl-conf", "refuse", lambda t: t.write("/etc/nccl.conf", "# from an image\nNCCL_IB_USE_INLINE=1\n"), "/etc/nccl.conf has NCCL_IB_USE_INLINE=1", "remove"),
    Ill("F26", "nccl-conf", "warn", lambda t: t.write(f"{HOME}/.nccl.conf", "NCCL_DEBUG=WARN\n"), "NCCL_DEBUG=WARN", "remove", name="harmless"),
    Ill("F31", "layout", "refuse", _each(*(lambda t, p=p: t.port(p, is_up=False, mtu=9000) for p in (P1, "enP2p1s0f1np1"))), "layout triangle must have 2 connectors up, got p0", "second cable", layout="triangle", also=("port-state", "gid")),
    # ---- software
    Ill("F10 S-software", "same-engine", "refuse", _content("sglang"), "spark-b dddddddddddd (4659 files)", "install"),
    Ill("F9", "same-extension", "refuse", _content("sgl_ext"), "sgl_ext must be the same on all nodes", "install"),
    Ill("F10", "same-packages", "refuse", _version("torch", "2.13.0"), "torch must be the same on all nodes, got spark-a 2.14.1, spark-b 2.13.0", "install"),
    Ill("F40", "same-packages", "refuse", lambda t: t.engine(nccl=[{"path": "/v/libnccl.so.2", "sha256": "e" * 64}]), "libnccl.so must be the same file", "install", name="nccl"),
    Ill("F24", "one-nccl", "refuse", _two_nccl, "/opt/nccl/lib/libnccl.so.2 before the engine's own", "LD_LIBRARY_PATH", changes={"request": {"environment": {"LD_LIBRARY_PATH": "/opt/nccl/lib"}}}),
    Ill("", "engine-answers", "refuse", lambda t: t.program(f"{HOME}/.local/share/sparkctl/venv/bin/python", "#!/bin/sh\necho 'Fatal Python error: init_fs_encoding'\nexit 1"), "init_fs_encoding", "install"),
    # ---- storage
    Ill("F4 S-disk-full", "disk", "refuse", _disk("cache", FULL), "5.0 GiB must be free, got 0.0 GiB", "df -h"),
    Ill("F4", "disk", "warn", _disk("models", "/data ext4 4000000000000 90000000000 244191232 243000000"), "only 83.8 GiB of 3725.3 GiB are free", "df -h", name="nearly"),
    Ill("", "disk", "warn", _disk("cache", "/ ext4 3936818806784 2900000000000 244191232 12"), "only 12 of 244191232 inodes", "df -h", name="inodes"),
    Ill("F12 F47", "disk-answers", "refuse", lambda t: t.program("/usr/bin/df", "#!/bin/sh\nexec /bin/sleep 20\n"), "df did not answer within 1.5 s", "umount", also=("probe-tool",)),
    Ill("F1 S-nfs-cache", "writable", "refuse", _each(_disk("cache", "/mnt/cache ext4 4000000000000 2900000000000 244191232 243000000"), lambda t: t.write("/proc/self/mounts", "/dev/sda /mnt/cache ext4 ro,relatime 0 0")), ".cache/sparkctl is not", "read-write"),
    Ill("F1", "writable", "warn", _each(_disk("home/nvidia", "/home ext4 4000000000000 2900000000000 244191232 243000000"), _disk("home/nvidia", "/home ext4 4000000000000 2900000000000 244191232 243000000"), lambda t: t.write("/proc/self/mounts", "/dev/sda /home ext4 ro,relatime 0 0")), "home must be writable", "another path", name="read-only home"),
    Ill("F12 F55 S-nfs-cache", "network-disk", "warn", _disk("models", "/mnt/nfs nfs4 4000000000000 2900000000000 0 0"), "is on nfs4 (mount /mnt/nfs)", "weights push"),
    Ill("F11 S-shard", "checkpoint", "refuse", _model("model-00002-of-00002.safetensors", POINTER), "1 file(s) are git-lfs pointers", "git lfs pull"),
    Ill("F3 S-shard", "checkpoint", "refuse", _model("model-00002-of-00002.safetensors", "w" * 1100), "its shards hold 3100 bytes, the index says 3500", "weights", name="short", also=("same-model",)),
    Ill("S-shard", "checkpoint", "refuse", _model("model-00002-of-00002.safetensors", ""), "1 weight file(s) are empty", "weights", name="empty"),
    Ill("S-disk-full", "checkpoint", "warn", _model(".cache/huggingface/download/abc.incomplete", ""), "abc.incomplete", "fetch", name="incomplete"),
    Ill("F55", "checkpoint", "refuse", _model(".sparkctl-weights.json", '{"schema_version": 1, "files": {}, "left_out": ["engram"]}'), "the engram shards must be there for this plan, they were left out", "--whole", name="left out"),
    Ill("F5 F10", "same-model", "refuse", _model("config.json", '{"model_type": "deepseek_v4", "lm_head_dtype": "fp8"}'), "config.json must be the same on all nodes", "weights push"),
    Ill("S-shard", "same-model", "refuse", _model("model-00002-of-00002.safetensors", "w" * 2100), "model-00002-of-00002.safetensors must be the same on all nodes, got spark-a 2000 bytes, spark-b 2100 bytes", "weights push", name="other size"),
]  # fmt: skip


def _short_index(tree: SparkTree) -> None:
    path = f"{HOME}/models/m/model.safetensors.index.json"
    tree.write(path, tree.read(path).replace("3000", "3500"))
    _model("model-00002-of-00002.safetensors", "w" * 1100)(tree)


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.check}-{case.name or case.report or 'own'}" for case in CASES]
)
def test_one_ill_node_is_named(case: Ill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "did not answer" in case.words:
        monkeypatch.setattr("launcher.node.probe_root.TOOL_TIMEOUT_S", 1.5)
    alter = _short_index if case.name == "short" else case.alter
    fabric = case.changes.get("fabric")
    changes: dict[str, Any] = {"request": case.changes.get("request")}
    if fabric:
        # The plan is made from healthy facts; a topology that is wrong is what the checks are for.
        changes["topology"] = topology_for(case.layout, fabric=fabric)
    found = problems(ill_case(case.layout, tmp_path, alter, **changes))
    mine = [item for item in found if item.check == case.check]
    assert mine, found
    assert any(
        item.level == case.level
        and case.words in item.evidence
        and case.fix in item.fix
        and "spark-b" in item.node
        for item in mine
    ), mine
    assert all(item.consequence and item.page == f"docs/checks/{item.check}.md" for item in mine)
    assert {item.check for item in found} <= {case.check, *case.also}


def hashed(tree: SparkTree) -> NodeReport:
    """The node's report, once `sparkctl weights` has hashed its checkpoint."""
    folder = tree.root / f"{HOME}/models/m".lstrip("/")
    files = {
        path.name: {
            "size_bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "stamp": stamp_of(path.stat()),
        }
        for path in sorted(folder.glob("[!.]*"))
    }
    write_manifest(folder, new_manifest(files, origin={}, left_out=[]))
    return report_of(tree)


def test_shards_of_one_size_are_told_apart_by_their_hash(tmp_path: Path) -> None:
    """S-shard: one bit of a shard differs. Where nobody hashed the file as it is, only sizes can be compared."""
    well, ill = (tree_of("pair", name, tmp_path / name) for name in ("spark-a", "spark-b"))
    same = case_of("pair", spark_a=hashed(well), spark_b=hashed(ill))
    assert problems(same) == []
    _model("model-00002-of-00002.safetensors", "w" * 1999 + "v")(ill)
    since_hashed = case_of("pair", spark_a=hashed(well), spark_b=report_of(ill))
    assert problems(since_hashed) == []
    (found,) = problems(case_of("pair", spark_a=hashed(well), spark_b=hashed(ill)))
    assert (found.check, found.level, found.node) == ("same-model", "refuse", "spark-b")
    one, other = (hashlib.sha256(b"w" * 1999 + last).hexdigest()[:12] for last in (b"w", b"v"))
    assert found.evidence == (
        f"model-00002-of-00002.safetensors must be the same on all nodes, got spark-a {one}, spark-b {other}"
    )


def test_a_shard_that_was_left_out_is_compared_by_the_hash_of_its_source(tmp_path: Path) -> None:
    well, ill = (tree_of("pair", name, tmp_path / name) for name in ("spark-a", "spark-b"))
    shard = "model-00002-of-00002.safetensors"
    ill.remove(f"{HOME}/models/m/{shard}")
    whole = {shard: hashlib.sha256(b"v" * 2000).hexdigest()}
    folder = ill.root / f"{HOME}/models/m".lstrip("/")
    write_manifest(folder, new_manifest({}, origin={}, left_out=["draft"], whole=whole))
    (found,) = problems(case_of("pair", spark_a=hashed(well), spark_b=report_of(ill)))
    assert (found.check, found.node) == ("same-model", "spark-b")
    assert whole[shard][:12] in found.evidence


def test_many_reports_are_reproduced() -> None:
    """The issue asks for at least 40 of the published situations."""
    assert len({report for case in CASES for report in case.report.split()}) >= 40

"""A recorded DGX Spark: the files of /sys, /proc and /etc that the probe reads, and tools that print what
real ones print. Values follow published dumps (driver 580.142, kernel 6.17.0-1014-nvidia); addresses and MACs
are invented."""

# ruff: noqa: E501 - recordings keep their lines

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

HOME = "/home/nvidia"
KB = 1024
MEMINFO = {
    "MemTotal": 127600748, "MemFree": 119000000, "MemAvailable": 123731968, "Cached": 2400000, "SwapTotal": 16777212,
    "SwapFree": 16777212, "CmaTotal": 131072, "CmaFree": 69320,
}  # fmt: skip
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1048576              1048576              files
Max locked memory         130000000000         130000000000         bytes
"""
GPU = "0, NVIDIA GB10, 580.142, P8, 208, 3003, 2418, 0x0000000000000001, 4.05, 36, 0"
IDENTITY = {
    "problem": None, "python": "3.12.3",
    "versions": {"sglang": "0.5.23", "sparkctl": "0.1.0", "torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7"},
    "content": {"sglang": {"sha256": "a" * 64, "num_files": 4661}, "sgl_ext": {"sha256": "b" * 64, "num_files": 40}},
    "nccl": [{"path": "/v/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", "sha256": "c" * 64}],
}  # fmt: skip
# netdev -> (RDMA device, PCI function, cage)
PORTS = {
    "enp1s0f0np0": ("rocep1s0f0", "0000:01:00.0", "p0"),
    "enp1s0f1np1": ("rocep1s0f1", "0000:01:00.1", "p1"),
    "enP2p1s0f0np0": ("roceP2p1s0f0", "0002:01:00.0", "p0"),
    "enP2p1s0f1np1": ("roceP2p1s0f1", "0002:01:00.1", "p1"),
}
DEVINFO = """hca_id:\t{hca}
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.45.4028
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\t{state}
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t{mtu}
\t\t\tlink_layer:\t\tEthernet
"""


@dataclass
class SparkTree:
    """One node's tree under `root`. `addresses`: netdev -> IPv4 with prefix, of the ports that are cabled."""

    root: Path
    name: str
    index: int
    addresses: dict[str, str]
    peers: dict[str, str]

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def remove(self, path: str) -> None:
        target = self.root / path.lstrip("/")
        if target.is_dir():
            for child in target.iterdir():
                self.remove(str(child.relative_to(self.root)))
            target.rmdir()
        else:
            target.unlink()

    def tool(self, name: str, said: dict[str, str] | str, *, status: int = 0, stderr: str = "") -> None:
        """A tool that prints `said`, or what `said` has for its arguments (shell patterns)."""
        table = {"*": said} if isinstance(said, str) else said
        cases = [
            f"{pattern if pattern == '*' else shlex.quote(pattern).replace('*', chr(39) + '*' + chr(39))}) "
            f"/bin/cat <<'END_OF_TEXT'\n{text}\nEND_OF_TEXT\n;;"
            for pattern, text in table.items()
        ]
        script = f'#!/bin/sh\ncase "$*" in\n{chr(10).join(cases)}\nesac\n'
        script += f"printf '%s' {shlex.quote(stderr)} >&2\nexit {status}\n"
        self.program(f"/usr/bin/{name}", script)

    def program(self, path: str, script: str) -> None:
        self.write(path, script)
        (self.root / path.lstrip("/")).chmod(0o755)

    def memory(self, **changes_kb: int) -> None:
        values = MEMINFO | changes_kb
        self.write("/proc/meminfo", "".join(f"{key}:{value:>15} kB\n" for key, value in values.items()))

    def process(self, pid: int, name: str, command: str, rss_kb: int) -> None:
        self.write(
            f"/proc/{pid}/status", f"Name:\t{name}\nUid:\t1000\t1000\t1000\t1000\nVmRSS:\t{rss_kb} kB\n"
        )
        self.write(f"/proc/{pid}/cmdline", command.replace(" ", "\0"))

    def port(self, netdev: str, *, is_up: bool, address: str | None = None, mtu: int = 9000, speed: int = 200000,
             gid_index: int = 3) -> None:  # fmt: skip
        """A ConnectX-7 function: netdev, PCI link, RDMA device and its GIDs."""
        hca, pci, cage = PORTS[netdev]
        net, verbs = f"/sys/class/net/{netdev}", f"/sys/class/infiniband/{hca}"
        files = {
            "mtu": mtu, "operstate": "up" if is_up else "down", "carrier": int(is_up), "phys_port_name": cage,
            "speed": speed if is_up else -1, "address": self.mac(netdev),
            "device/uevent": f"DRIVER=mlx5_core\nPCI_SLOT_NAME={pci}", "device/current_link_speed": "32.0 GT/s PCIe",
            "device/current_link_width": 4,
        }  # fmt: skip
        for path, value in files.items():
            self.write(f"{net}/{path}", f"{value}\n")
        self.write(f"{verbs}/device/net/{netdev}/ifindex", "4\n")
        self.write(f"{verbs}/fw_ver", "28.45.4028\n")
        states = (
            ("4: ACTIVE", "5: LinkUp", "200 Gb/sec (4X HDR)")
            if is_up
            else ("1: DOWN", "3: Disabled", "40 Gb/sec (4X QDR)")
        )
        for path, text in zip(("state", "phys_state", "rate"), states, strict=True):
            self.write(f"{verbs}/ports/1/{path}", f"{text}\n")
        self.write(f"{verbs}/ports/1/link_layer", "Ethernet\n")
        self.gids(netdev, address, gid_index)

    def gids(self, netdev: str, address: str | None, index: int) -> None:
        """fe80 in slots 0 and 1, the IPv4 address in the two slots that end at `index`, zeros elsewhere."""
        port = f"/sys/class/infiniband/{PORTS[netdev][0]}/ports/1"
        slots = {
            0: ("IB/RoCE v1", "fe80:0000:0000:0000:4ebb:47ff:fe2a:6531"),
            1: ("RoCE v2", "fe80:0000:0000:0000:4ebb:47ff:fe2a:6531"),
        }
        if address:
            raw = bytes(int(part) for part in address.split("/")[0].split(".")).hex()
            mapped = f"0000:0000:0000:0000:0000:ffff:{raw[:4]}:{raw[4:]}"
            slots |= {index - 1: ("IB/RoCE v1", mapped), index: ("RoCE v2", mapped)}
        for slot in range(8):
            kind, gid = slots.get(slot, ("", ":".join(["0000"] * 8)))
            self.write(f"{port}/gids/{slot}", f"{gid}\n")
            types, ndevs = f"{port}/gid_attrs/types/{slot}", f"{port}/gid_attrs/ndevs/{slot}"
            for path, text in ((types, kind), (ndevs, netdev)):
                (self.root / path.lstrip("/")).unlink(missing_ok=True)
                if kind:
                    self.write(path, f"{text}\n")

    def mac(self, netdev: str) -> str:
        return f"02:00:5e:00:{self.index:02x}:{sorted(PORTS).index(netdev) if netdev in PORTS else 9:02x}"

    def devinfo(self, **mtu_of: str) -> None:
        """ibv_devinfo; `mtu_of`: netdev -> active_mtu as printed."""
        text = "".join(
            DEVINFO.format(
                hca=PORTS[netdev][0],
                state="PORT_ACTIVE (4)" if netdev in self.addresses else "PORT_DOWN (1)",
                mtu=mtu_of.get(netdev, "4096 (5)" if netdev in self.addresses else "1024 (3)"),
            )
            for netdev in PORTS
        )
        self.tool("ibv_devinfo", text)

    def network(self, addresses: dict[str, str], *, routes: dict[str, dict[str, str]] | None = None,
                neighbours: list[dict[str, object]] | None = None) -> None:  # fmt: skip
        """`ip`: addresses, the route to each peer, and the ARP table."""
        links = [
            {
                "ifname": netdev,
                "addr_info": [{"local": item.split("/")[0], "prefixlen": int(item.split("/")[1])}],
            }
            for netdev, item in {
                "lo": "127.0.0.1/8",
                "enP7s7": f"192.0.2.{self.index}/24",
                **addresses,
            }.items()
        ]
        said = {"-j -4 addr show": json.dumps(links), "-j -4 neigh show": json.dumps(neighbours or [])}
        first = next(iter(addresses), "lo")
        for peer in self.peers.values():
            row = {"dst": peer, "dev": first, "prefsrc": addresses.get(first, "127.0.0.1/8").split("/")[0]}
            said[f"-j route get {peer}"] = json.dumps([row | (routes or {}).get(peer, {})])
        self.tool("ip", said)

    def engine(self, **changes: object) -> None:
        text = json.dumps(IDENTITY | changes)
        self.program(
            f"{HOME}/.local/share/sparkctl/venv/bin/python", f"#!/bin/sh\n/bin/cat <<'E'\n{text}\nE\n"
        )

    def gpu(self, row: str = GPU, processes: str = "") -> None:
        self.tool("nvidia-smi", {"--query-gpu=*": row, "--query-compute-apps=*": processes})

    def disks(self, rows: dict[str, str] | None = None) -> None:
        """df; `rows`: part of a path -> what df prints for it."""
        healthy = "/ ext4 3936818806784 2900000000000 244191232 243000000"
        cases = "".join(f"*{part}*) echo '{row}';;\n" for part, row in (rows or {}).items())
        self.program(
            "/usr/bin/df",
            f'#!/bin/sh\necho header\nfor path in "$@"; do case "$path" in -*) ;;\n{cases}*) echo "{healthy}";; esac; done\n',
        )

    def log(self, *lines: str) -> None:
        stamp = "2026-09-12T10:00:00+0000 spark kernel:"
        text = "\n".join(f"{stamp} {line}" for line in ("Linux version 6.17.0-1014-nvidia", *lines))
        self.tool("journalctl", {"-k *": text, "-t earlyoom *": ""})


def healthy_spark(
    root: Path, name: str, index: int, addresses: dict[str, str], peers: dict[str, str]
) -> SparkTree:
    tree = SparkTree(root, name, index, addresses, peers)
    for netdev in PORTS:
        tree.port(
            netdev,
            is_up=netdev in addresses,
            address=addresses.get(netdev),
            mtu=9000 if netdev in addresses else 1500,
        )
    for name_, mtu, state in (("lo", 65536, "unknown"), ("enP7s7", 1500, "up"), ("wlP9s9", 1500, "up")):
        tree.write(f"/sys/class/net/{name_}/mtu", f"{mtu}\n")
        tree.write(f"/sys/class/net/{name_}/operstate", f"{state}\n")
        tree.write(f"/sys/class/net/{name_}/carrier", "1\n")
    tree.write("/sys/class/net/enP7s7/device/uevent", "DRIVER=r8127\nPCI_SLOT_NAME=0007:01:00.0")
    tree.write("/sys/class/net/wlP9s9/wireless/.keep", "")
    for device in ("uverbs0", "uverbs1", "uverbs2", "uverbs3", "rdma_cm"):
        tree.write(f"/dev/infiniband/{device}", "")
    tree.network(addresses)
    tree.devinfo()
    _write_host(tree)
    _write_model(tree)
    tree.engine()
    tree.gpu()
    tree.disks()
    tree.log("Detected insufficient power on the PCIe slot (27W).")
    tree.tool("dpkg-query", "ii  580.142-0ubuntu0.24.04.1")
    tree.tool("timedatectl", "yes")
    tree.tool("docker", "")
    return tree


def _write_host(tree: SparkTree) -> None:
    files = {
        "/proc/sys/kernel/osrelease": "6.17.0-1014-nvidia",
        "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz init_on_alloc=0 pci=pcie_bus_safe quiet splash iommu.passthrough=0",
        "/proc/sys/kernel/hostname": tree.name,
        "/proc/sys/vm/swappiness": "60",
        "/proc/sys/net/ipv4/conf/all/arp_ignore": "0",
        "/proc/sys/net/ipv4/ip_forward": "1",
        "/proc/vmstat": "pswpin 0\npswpout 0",
        "/proc/self/limits": LIMITS,
        "/proc/self/mounts": "/dev/nvme0n1p2 / ext4 rw,relatime 0 0",
        "/sys/module/nvidia/version": "580.142",
        "/etc/dgx-release": 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\nDGX_SERIAL_NUMBER="0"\n\nDGX_OTA_VERSION="7.4.0"',
        "/etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {tree.name}",
        "/etc/ufw/ufw.conf": "ENABLED=no",
        "/etc/netplan/40-cx7.yaml": "",
        "/boot/vmlinuz-6.17.0-1014-nvidia": "",
        "/lib/modules/6.17.0-1014-nvidia/modules.dep": "kernel/nvidia-580-open/nvidia.ko.zst:",
        "/sys/block/nvme0n1/queue/read_ahead_kb": "128",
    }
    for path, text in files.items():
        tree.write(path, text + "\n")
    tree.memory()
    tree.process(1, "systemd", "/sbin/init", 12000)
    for place in (".local/state/sparkctl", ".cache/sparkctl", "engram"):
        tree.write(f"{HOME}/{place}/.keep", "")
    tree.write("/tmp/.keep", "")


def _write_model(tree: SparkTree) -> None:
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"metadata": {"total_size": 3000}, "weight_map": {"a": shards[0], "b": shards[1]}}
    tree.write(f"{HOME}/models/m/config.json", '{"model_type": "deepseek_v4"}')
    tree.write(f"{HOME}/models/m/model.safetensors.index.json", json.dumps(index))
    for shard in shards:
        tree.write(f"{HOME}/models/m/{shard}", "w" * 2000)

"""RDMA devices of a node: port state, MTU in use, and every GID with its type and netdev. Read-only."""

from __future__ import annotations

import re
import socket
from typing import Any

from launcher.node.probe_root import ProbeRoot

VERBS = "/sys/class/infiniband"


def rdma_devices(root: ProbeRoot) -> list[dict[str, Any]]:
    """One entry a device; names are never assumed: the netdev is what the kernel says."""
    names = root.names(VERBS)
    active_mtu = _active_mtu(root) if names else {}
    found = []
    for name in names:
        device, port = f"{VERBS}/{name}", f"{VERBS}/{name}/ports/1"
        netdevs = root.names(device + "/device/net")
        found.append({
            "name": name,
            "netdev": netdevs[0] if netdevs else None,
            "state": root.text(port + "/state"),
            "phys_state": root.text(port + "/phys_state"),
            "link_layer": root.text(port + "/link_layer"),
            "rate": root.text(port + "/rate"),
            "firmware": root.text(device + "/fw_ver"),
            "active_mtu": active_mtu.get(name),
            "gids": _gids(root, port),
        })  # fmt: skip
    return found


def _active_mtu(root: ProbeRoot) -> dict[str, int]:
    """Bytes by device. sysfs does not tell it, so the verbs tool is asked."""
    said = root.tool("ibv_devinfo")
    found: dict[str, int] = {}
    name = ""
    for line in said.stdout.splitlines():
        if match := re.match(r"\s*hca_id:\s+(\S+)", line):
            name = match.group(1)
        elif match := re.match(r"\s*active_mtu:\s+(\d+)", line):
            found[name] = int(match.group(1))
    return found


def _gids(root: ProbeRoot, port: str) -> list[dict[str, Any]]:
    """Filled slots only: an empty one has a GID of zeros, and no type."""
    gids = []
    for index in sorted((name for name in root.names(port + "/gids") if name.isdigit()), key=int):
        gid = root.text(f"{port}/gids/{index}") or ""
        if not gid.strip("0:"):
            continue
        gids.append({
            "index": int(index),
            "type": root.text(f"{port}/gid_attrs/types/{index}"),
            "netdev": root.text(f"{port}/gid_attrs/ndevs/{index}"),
            "address": _ipv4(gid),
        })  # fmt: skip
    return gids


def _ipv4(gid: str) -> str | None:
    match = re.fullmatch(r"(?:0000:){5}ffff:([0-9a-f]{4}):([0-9a-f]{4})", gid)
    return socket.inet_ntoa(bytes.fromhex(match.group(1) + match.group(2))) if match else None

"""Ports, RDMA devices, addresses and routes of a node, and what may stand in their way. Read-only."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from typing import Any

from launcher.node.probe_root import ProbeRoot
from launcher.node.rdma_ports import rdma_devices

HOTPLUG_SWITCH = "/etc/nvidia/cx7-hotplug-enabled"
VERBS_LIBRARIES = tuple(
    f"{folder}/libibverbs.so.1"
    for folder in ("/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")
)
REGISTER_S = 10.0
NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")


def fabric_facts(root: ProbeRoot, *, peers: dict[str, Any], home: str) -> dict[str, Any]:
    """`peers`: name -> addresses of the other nodes, for the routes to them."""
    return {
        "interfaces": _interfaces(root),
        "hcas": rdma_devices(root),
        "routes": [_route(root, address) for addresses in peers.values() for address in addresses],
        "neighbours": _neighbours(root),
        "arp_ignore": root.number("/proc/sys/net/ipv4/conf/all/arp_ignore"),
        "ip_forward": root.number("/proc/sys/net/ipv4/ip_forward"),
        "forward_policy": _forward_policy(root),
        "firewall": _firewall(root),
        "verbs_devices": root.names("/dev/infiniband"),
        "registration": _registration(root),
        "hotplug": root.path(HOTPLUG_SWITCH).exists(),
        "netplan": root.names("/etc/netplan"),
        "nccl_conf": _nccl_conf(root, home),
    }


def _registration(root: ProbeRoot) -> dict[str, Any]:
    """What registering memory says, by device; `problem` where it could not be tried."""
    library = next((path for path in VERBS_LIBRARIES if root.path(path).exists()), None)
    if library is None:
        return {"problem": "libibverbs.so.1 is not installed", "devices": {}}
    code = (pkgutil.get_data("launcher.node", "rdma_register.py") or b"").decode()
    words = [sys.executable, "-I", "-S", "-c", code, str(root.path(library))]
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=REGISTER_S, stdin=subprocess.DEVNULL, text=True
        )
        devices = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"problem": f"it did not end within {REGISTER_S:.0f} s", "devices": {}}
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"problem": f"it ended without a result: {last[:200]}", "devices": {}}
    return {"problem": None, "devices": devices}


def _interfaces(root: ProbeRoot) -> list[dict[str, Any]]:
    addresses = _addresses(root)
    found = []
    for name in root.names("/sys/class/net"):
        here = f"/sys/class/net/{name}"
        if root.number(here + "/mtu") is None:  # bonding_masters and the like are no interfaces
            continue
        uevent = root.text(here + "/device/uevent") or ""
        pci = re.search(r"^PCI_SLOT_NAME=(\S+)", uevent, re.MULTILINE)
        driver = re.search(r"^DRIVER=(\S+)", uevent, re.MULTILINE)
        found.append({
            "name": name,
            "mac": root.text(here + "/address"),
            "addresses": addresses.get(name, []),
            "mtu": root.number(here + "/mtu"),
            "state": root.text(here + "/operstate"),
            "carrier": root.number(here + "/carrier"),
            "speed_mbps": root.number(here + "/speed"),
            "cage": root.text(here + "/phys_port_name"),
            "driver": driver.group(1) if driver else None,
            "pci": pci.group(1) if pci else None,
            "pcie_speed": root.text(here + "/device/current_link_speed"),
            "pcie_width": root.number(here + "/device/current_link_width"),
            "is_wireless": root.path(here + "/wireless").exists() or root.path(here + "/phy80211").exists(),
        })  # fmt: skip
    return found


def _json(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text or "[]")
    except ValueError:
        return []
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _addresses(root: ProbeRoot) -> dict[str, list[str]]:
    """IPv4 addresses with prefix length, `10.0.0.1/24`, by interface."""
    said = root.tool("ip", "-j", "-4", "addr", "show")
    return {
        link["ifname"]: [
            "{}/{}".format(item["local"], item.get("prefixlen", 32))
            for item in link.get("addr_info", [])
            if "local" in item
        ]
        for link in _json(said.stdout)
        if "ifname" in link
    }


def _route(root: ProbeRoot, address: str) -> dict[str, Any]:
    said = root.tool("ip", "-j", "route", "get", address)
    rows = _json(said.stdout)
    row = rows[0] if said.is_good and rows else {}
    return {"to": address, "interface": row.get("dev"), "source": row.get("prefsrc"),
            "via": row.get("gateway"), "problem": None if row else said.first_line}  # fmt: skip


def _neighbours(root: ProbeRoot) -> list[dict[str, Any]]:
    said = root.tool("ip", "-j", "-4", "neigh", "show")
    return [
        {
            "address": row["dst"],
            "interface": row.get("dev"),
            "mac": row.get("lladdr"),
            "state": "/".join(row.get("state", [])),
        }
        for row in _json(said.stdout)
        if "dst" in row
    ]


def _forward_policy(root: ProbeRoot) -> str | None:
    """`DROP` or `ACCEPT` of the first rule;
    None where this user may not ask, or where there is no iptables."""
    said = root.tool("iptables", "-S", "FORWARD", is_needed=False, timeout_s=1.0)
    match = re.search(r"^-P FORWARD (\w+)", said.stdout, re.MULTILINE)
    return match.group(1) if said.is_good and match else None


def _firewall(root: ProbeRoot) -> bool | None:
    """Whether ufw is switched on; its file tells it to everybody, `ufw status` only to root."""
    match = re.search(r"^ENABLED=(\w+)", root.text("/etc/ufw/ufw.conf") or "", re.MULTILINE)
    return match.group(1).lower() == "yes" if match else None


def _nccl_conf(root: ProbeRoot, home: str) -> list[dict[str, Any]]:
    """Settings that NCCL reads behind the environment's back."""
    found = []
    for name in NCCL_FILES:
        text = root.text(name.replace("~", home, 1))
        if text is not None:
            lines = [
                line.strip()
                for line in text.splitlines()
                if line.strip() and not line.strip().startswith("#")
            ]
            found.append({"path": name, "settings": lines[:40]})
    return found

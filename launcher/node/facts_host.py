"""Kernel, driver, memory, limits, desktop and clock of a node. Read-only."""

from __future__ import annotations

import re
from typing import Any

from launcher.node.facts_cpu import cpu_facts
from launcher.node.facts_kernel_log import kernel_log_facts
from launcher.node.probe_root import ProbeRoot

MEMORY_KEYS = (
    "MemTotal",
    "MemFree",
    "MemAvailable",
    "Cached",
    "SwapTotal",
    "SwapFree",
    "CmaTotal",
    "CmaFree",
)
DESKTOP = {
    "gnome-shell",
    "Xorg",
    "Xwayland",
    "gdm",
    "gdm3",
    "gdm-x-session",
    "sddm",
    "lightdm",
    "kwin_wayland",
}
ENGINE_WORDS = ("sglang::", "sglang.launch_server", "sglang serve", "vllm serve", "VLLM::")
NUM_LISTED = 5
# Command lines of others are shown to people: what follows such an option is not.
SECRET_OPTION = re.compile(r"(--?[a-z-]*(?:key|token|password|secret)[= ])\S+", re.IGNORECASE)


def host_facts(root: ProbeRoot) -> dict[str, Any]:
    processes = _processes(root)
    release = root.text("/proc/sys/kernel/osrelease")
    return {
        "kernel": release,
        "cmdline": root.text("/proc/cmdline"),
        "dgx_release": _dgx_release(root),
        "driver_loaded": root.text("/sys/module/nvidia/version"),
        "driver_installed": _driver_installed(root),
        "next_kernel": _next_kernel(root),
        "cpu": cpu_facts(root),
        "memory": _memory(root),
        "swapped_in_pages": _vmstat(root, "pswpin"),
        "swappiness": root.number("/proc/sys/vm/swappiness"),
        "largest": sorted(processes, key=lambda item: -item["rss_bytes"])[:NUM_LISTED],
        "engines": [item for item in processes if any(word in item["title"] for word in ENGINE_WORDS)],
        "desktop": [item for item in processes if item["name"] in DESKTOP],
        "limits": _limits(root),
        "ntp_synchronized": _ntp_synchronized(root),
        "hostname_addresses": _hostname_addresses(root),
        "kernel_log": kernel_log_facts(root),
    }


def _dgx_release(root: ProbeRoot) -> str | None:
    """The last OTA version is what runs; the file also holds the serial number, which stays here."""
    found = re.findall(
        r'^DGX_(?:OTA|SWBUILD)_VERSION="?([0-9.]+)', root.text("/etc/dgx-release") or "", re.MULTILINE
    )
    return found[-1] if found else None


def _driver_installed(root: ProbeRoot) -> str | None:
    said = root.tool(
        "dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Version}\\n", "nvidia-driver-*-open", is_needed=False
    )
    found = re.findall(r"^ii\s+(?:\d+:)?(\d+\.\d+(?:\.\d+)?)", said.stdout, re.MULTILINE)
    return found[-1] if found else None


def _next_kernel(root: ProbeRoot) -> dict[str, Any] | None:
    """The newest kernel in /boot: what the next boot takes, and whether it has an nvidia module."""
    names = [name[len("vmlinuz-") :] for name in root.names("/boot") if name.startswith("vmlinuz-")]
    if not names:
        return None
    newest = max(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    modules = root.text(f"/lib/modules/{newest}/modules.dep")
    return {"version": newest, "has_nvidia": modules is not None and "/nvidia.ko" in modules}


def _memory(root: ProbeRoot) -> dict[str, Any]:
    """Bytes by name; read from /proc, because `free` translates its titles."""
    text = root.text("/proc/meminfo") or ""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    return {key: int(found[key]) * 1024 if key in found else None for key in MEMORY_KEYS}


def _vmstat(root: ProbeRoot, key: str) -> int | None:
    match = re.search(rf"^{key} (\d+)$", root.text("/proc/vmstat") or "", re.MULTILINE)
    return int(match.group(1)) if match else None


def _processes(root: ProbeRoot) -> list[dict[str, Any]]:
    found = []
    for name in root.names("/proc"):
        if not name.isdigit():
            continue
        status = root.text(f"/proc/{name}/status")
        if status is None:  # it has ended
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" not in fields:  # a kernel thread or a zombie
            continue
        command = (root.text(f"/proc/{name}/cmdline") or "").replace("\0", " ").strip()
        label = fields.get("Name", "?").strip()
        found.append({
            "pid": int(name),
            "name": label,
            "title": SECRET_OPTION.sub(r"\1***", command or label)[:160],
            "rss_bytes": int(fields["VmRSS"].split()[0]) * 1024,
        })  # fmt: skip
    return found


def _limits(root: ProbeRoot) -> dict[str, Any]:
    """Soft limits as a process started over this connection has them; None stands for unlimited."""
    text = root.text("/proc/self/limits") or ""
    found = {}
    for key, title in (("memlock_bytes", "Max locked memory"), ("open_files", "Max open files")):
        match = re.search(rf"^{title}\s+(\S+)\s+(\S+)", text, re.MULTILINE)
        found[key] = match.group(1) if match else None
        found[key + "_hard"] = match.group(2) if match else None
    return found


def _ntp_synchronized(root: ProbeRoot) -> bool | None:
    said = root.tool(
        "timedatectl", "show", "-p", "NTPSynchronized", "--value", is_needed=False, timeout_s=1.0
    )
    return {"yes": True, "no": False}.get(said.stdout.strip()) if said.is_good else None


def _hostname_addresses(root: ProbeRoot) -> list[str]:
    """What /etc/hosts says of the node's own name: 127.0.1.1 there makes Gloo bind to loopback."""
    name = root.text("/proc/sys/kernel/hostname")
    lines = [line.split("#")[0].split() for line in (root.text("/etc/hosts") or "").splitlines()]
    return [words[0] for words in lines if words and name in words[1:]]

"""What the kernel and earlyoom have said since the boot, sorted by kind. Read-only."""

from __future__ import annotations

import re
from typing import Any

from launcher.node.probe_root import ProbeRoot

KEPT_LINES = 3
KINDS = {
    "xid": re.compile(r"NVRM: Xid"),
    "aer": re.compile(r"\bAER: |PCIe Bus Error"),
    "oom": re.compile(r"Out of memory: Killed process|\boom-kill:"),
    "nv_memory": re.compile(r"NV_ERR_NO_MEMORY"),
    "cable": re.compile(r"mlx5_core .*(Link down|Cable unplugged)"),
    "firmware": re.compile(r"mlx5_core .*(pre-init|error -110|health poll|fatal|timeout)", re.IGNORECASE),
    "disk": re.compile(r"nvme\d.*(I/O error|timeout, |controller is down)|EXT4-fs error"),
}


def kernel_log_facts(root: ProbeRoot) -> dict[str, Any]:
    """`kinds`: kind -> {count, last lines}; `problem` when the log may not be read by this user."""
    log = root.tool(
        "journalctl", "-k", "-b", "-q", "--no-pager", "-n", "20000", "-o", "short-iso", is_needed=False
    )
    if not log.is_good or not log.stdout.strip():
        log = root.tool("dmesg", is_needed=False)
    if not log.is_good:
        return {"problem": log.first_line, "kinds": {}, "earlyoom": []}
    kinds: dict[str, Any] = {}
    for line in log.stdout.splitlines():
        for kind, pattern in KINDS.items():
            if pattern.search(line):
                found = kinds.setdefault(kind, {"count": 0, "lines": []})
                found["count"] += 1
                found["lines"] = [*found["lines"], line.strip()[:300]][-KEPT_LINES:]
    return {"problem": None, "kinds": kinds, "earlyoom": _earlyoom(root)}


def _earlyoom(root: ProbeRoot) -> list[str]:
    if root.find_tool("earlyoom") is None:
        return []
    log = root.tool("journalctl", "-t", "earlyoom", "-b", "-q", "--no-pager", "-n", "300", is_needed=False)
    killed = [
        line.strip()[:300] for line in log.stdout.splitlines() if re.search(r"sending SIG(TERM|KILL)", line)
    ]
    return killed[-KEPT_LINES:]

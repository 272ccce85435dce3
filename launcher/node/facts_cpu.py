"""What a node's processors are: architecture, model and number. Read-only."""

from __future__ import annotations

import platform
import re
from collections import Counter
from typing import Any

from launcher.node.probe_root import ProbeRoot

# Arm cores tell no name, only a part number: those of a DGX Spark (GB10), as Linux's cputype.h has them.
ARM = "0x41"
ARM_PARTS = {"0xd85": "Cortex-X925", "0xd87": "Cortex-A725"}


def cpu_facts(root: ProbeRoot) -> dict[str, Any]:
    """`model`: each kind of core once, with its number where there are several kinds."""
    processors = [
        dict(re.findall(r"^([^\t:\n]+?)\s*:[ \t]*(.*)$", block, re.MULTILINE))
        for block in re.split(r"\n\s*\n", root.text("/proc/cpuinfo") or "")
    ]
    processors = [fields for fields in processors if "processor" in fields]
    kinds = Counter(filter(None, map(_name, processors)))
    named = [name if len(kinds) == 1 else f"{count} x {name}" for name, count in sorted(kinds.items())]
    return {
        "architecture": None if root.is_recorded else platform.machine(),
        "model": " + ".join(named) or None,
        "count": len(processors) or None,
    }


def _name(fields: dict[str, str]) -> str | None:
    if "model name" in fields:
        return " ".join(fields["model name"].split())
    part = fields.get("CPU part")
    if part is None:
        return None
    maker = fields.get("CPU implementer")
    if maker == ARM:
        return f"Arm {ARM_PARTS.get(part, f'part {part}')}"
    return f"implementer {maker} part {part}"

"""What nvidia-smi says of the GPUs and of who uses them. Read-only, two calls."""

from __future__ import annotations

from typing import Any

from launcher.node.probe_root import ProbeRoot

FIELDS = (
    "index", "name", "driver_version", "pstate", "clocks.sm", "clocks.max.sm", "clocks.applications.graphics",
    "clocks_throttle_reasons.active", "power.draw", "temperature.gpu", "utilization.gpu",
)  # fmt: skip


def gpu_facts(root: ProbeRoot) -> dict[str, Any]:
    """`gpus`: one map a GPU, values as printed;
    what the driver does not tell is None (a GB10 tells no memory)."""
    said = root.tool("nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in said.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(FIELDS)]
    if not said.is_good or not rows:
        return {"problem": said.first_line, "gpus": [], "processes": []}
    gpus = [
        dict(zip([field.replace(".", "_") for field in FIELDS], map(_value, row), strict=True))
        for row in rows
    ]
    return {"problem": None, "gpus": gpus, "processes": _processes(root)}


def _value(cell: str) -> str | None:
    return None if cell.strip("[]").lower() in ("", "n/a", "not supported", "unknown error") else cell


def _processes(root: ProbeRoot) -> list[dict[str, Any]]:
    said = root.tool(
        "nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"
    )
    found = []
    for line in said.stdout.splitlines() if said.is_good else []:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdigit():
            used = int(cells[2]) * (1 << 20) if cells[2].isdigit() else None
            found.append({"pid": int(cells[0]), "name": cells[1], "used_bytes": used})
    return found

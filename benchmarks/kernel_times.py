"""Sums a folder of torch profiler traces by kernel name."""

import gzip
import json
import time
from pathlib import Path
from typing import Any


def sum_kernels(folder: Path, limit_s: float) -> dict[str, Any]:
    """Milliseconds and calls of the heaviest kernels of each trace; waits until a trace is whole."""
    begin = time.monotonic()
    result: dict[str, Any] = {}
    while time.monotonic() - begin < limit_s:
        for path in sorted(folder.rglob("*.trace.json.gz")):
            if path.name not in result and (events := read_trace(path)) is not None:
                result[path.name] = _sum(events)
        if len(result) >= 2:
            break
        time.sleep(1)
    return result


def wait_for_trace(folder: Path, limit_s: float) -> tuple[Path, list[dict[str, Any]]] | None:
    """The folder's first trace that is whole, and its events; None after the limit."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit_s:
        for path in sorted(folder.rglob("*.trace.json.gz")):
            if (events := read_trace(path)) is not None:
                return path, events
        time.sleep(0.5)
    return None


def read_trace(path: Path) -> list[dict[str, Any]] | None:
    """Its events; None while it is still being written."""
    try:
        with gzip.open(path, "rt") as file:
            return list(json.load(file)["traceEvents"])
    except (EOFError, OSError, ValueError):
        return None


def _sum(events: list[dict[str, Any]]) -> dict[str, Any]:
    totals: dict[str, list[float]] = {}
    spans = []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            total = totals.setdefault(str(event["name"])[:120], [0.0, 0])
            total[0] += event["dur"] / 1e3
            total[1] += 1
            spans.append((event["ts"], event["ts"] + event["dur"]))
    if not spans:
        return {"error": "no kernel in the trace"}
    busiest = sorted(totals.items(), key=lambda item: -item[1][0])[:40]
    return {
        "wall_ms": (max(last for _, last in spans) - min(first for first, _ in spans)) / 1e3,
        "kernels_ms": sum(total[0] for total in totals.values()),
        "by_name": [{"name": name, "ms": round(ms, 3), "calls": int(num)} for name, (ms, num) in busiest],
    }

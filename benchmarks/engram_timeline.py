"""When Engram rows reached the GPU, and how long it stood still for them, from a torch profiler trace.

Of one request to an engine with rows from disk. A layer's rows arrive as one copy from host memory; the
layers' copies follow each other on a stream of their own, so the reads of one begin when the one before it
has arrived. What the GPU's main stream waits for them is its idle time before the kernel that dequantises
them. Per layer: the share of the time of its reads in which the main stream did other work.
"""

from pathlib import Path
from typing import Any

from kernel_times import wait_for_trace  # beside this file

_DEQUANTISE = "_dequantise_kernel"


def wait_for_timeline(folder: Path, layers: list[int], min_bytes: int, limit_s: float) -> dict[str, Any]:
    """Of the folder's first trace that is whole; `min_bytes`: smaller copies are no rows."""
    if (found := wait_for_trace(folder, limit_s)) is not None:
        return {"trace": found[0].name} | make_timeline(found[1], layers, min_bytes)
    return {"error": f"no whole trace in {folder} after {limit_s:.0f} s"}


def make_timeline(events: list[dict[str, Any]], layers: list[int], min_bytes: int) -> dict[str, Any]:
    """Milliseconds since the request's first event on the GPU."""
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [event for event in work if event["cat"] == "kernel"]
    users = [event for event in kernels if _DEQUANTISE in event["name"]]
    copies = [
        event
        for event in work
        if event["cat"] == "gpu_memcpy" and "HtoD" in event["name"] and event["args"]["bytes"] >= min_bytes
    ]
    if not users or len(users) != len(copies):
        return {"error": f"every dequantisation needs its copy, got {len(users)} and {len(copies)}"}
    origin = min(event["ts"] for event in work)
    main = users[0]["args"]["stream"]
    on_main = sorted((event for event in work if event["args"]["stream"] == main), key=_start)
    rows, before = [], origin
    for idx, (copy, user) in enumerate(
        zip(sorted(copies, key=_start), sorted(users, key=_start), strict=True)
    ):
        arrived = copy["ts"] + copy["dur"]
        free = max((_end(event) for event in on_main if event["ts"] < user["ts"]), default=origin)
        rows.append(
            {
                "layer": layers[idx % len(layers)],
                "bytes": copy["args"]["bytes"],
                "arrived_ms": (arrived - origin) / 1e3,
                "used_ms": (user["ts"] - origin) / 1e3,
                "reads_ms": (arrived - before) / 1e3,
                "waited_ms": max(user["ts"] - max(free, before), 0) / 1e3,
            }
        )
        before = arrived
    return {
        "span_ms": (max(map(_end, work)) - origin) / 1e3,
        "main_busy_ms": sum(event["dur"] for event in on_main) / 1e3,
        "hidden": {str(layer): _hidden([row for row in rows if row["layer"] == layer]) for layer in layers},
        "rows": rows,
    }


def _hidden(rows: list[dict[str, Any]]) -> float | None:
    reads = sum(row["reads_ms"] for row in rows)
    waited = sum(min(row["waited_ms"], row["reads_ms"]) for row in rows)
    return 1 - waited / reads if reads else None


def _start(event: dict[str, Any]) -> float:
    return float(event["ts"])


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])

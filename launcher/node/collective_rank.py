"""One rank of the collective probe. Run as `ENGINE_PYTHON -c THIS SETTINGS`: all-reduce from 4 B to 256 MB.

The launcher only sends this text; torch is loaded by name, in the engine's own Python.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from datetime import timedelta
from typing import Any


def say(**values: object) -> None:
    print(json.dumps({"probe": values}), flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    started = time.monotonic()
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    device = (
        torch.device("cuda", settings["local_rank"]) if settings["backend"] == "nccl" else torch.device("cpu")
    )
    say(stage="imported", seconds=time.monotonic() - started, torch=torch.__version__)
    dist.init_process_group(
        settings["backend"], store=meet(dist, settings), rank=settings["rank"],
        world_size=settings["world_size"], timeout=timedelta(seconds=settings["timeout_s"]),
    )  # fmt: skip
    say(stage="joined", seconds=time.monotonic() - started)
    sizes = settings["sizes_bytes"]
    for size_bytes, next_bytes in zip(sizes, [*sizes[1:], 0], strict=True):
        row = measure(torch, dist, device, size_bytes, settings)
        say(**row)
        slowest_s = slowest(torch, dist, device, row["median_s"])
        # Where bandwidth decides, time grows with the size: what will take long tells no more than this size.
        if size_bytes >= 1 << 20 and slowest_s * next_bytes / size_bytes > settings["longest_s"]:
            break
    say(stage="done", seconds=time.monotonic() - started)
    dist.destroy_process_group()


def meet(dist: Any, settings: dict[str, Any]) -> Any:
    """The ranks' store, once all of them have imported torch:
    the slowest one's import is not in the time of an operation.
    """
    host, port = settings["rendezvous"].rsplit(":", 1)
    rank, world_size = settings["rank"], settings["world_size"]
    timeout = timedelta(seconds=settings["meeting_s"])
    store = dist.TCPStore(host, int(port), world_size, rank == 0, timeout)
    store.set(f"met/{rank}", "1")
    store.wait([f"met/{other}" for other in range(world_size)], timeout)
    return store


def slowest(torch: Any, dist: Any, device: Any, seconds: float) -> float:
    """The most seconds of any rank, so that all ranks decide alike."""
    most = torch.tensor([seconds], dtype=torch.float32, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return float(most)


def measure(torch: Any, dist: Any, device: Any, size_bytes: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Best and median seconds of all-reduce; the first round is not counted, it opens connections."""
    num_rounds = settings["rounds"] if size_bytes <= settings["small_bytes"] else 1
    data = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
    seconds = []
    for i in range(num_rounds + (size_bytes <= settings["small_bytes"])):
        data.fill_(1.0)
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.monotonic()
        dist.all_reduce(data)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if i or num_rounds == 1:
            seconds.append(time.monotonic() - started)
    wrong = int((data != float(settings["world_size"])).sum())
    seconds.sort()
    return {"stage": "size", "size_bytes": size_bytes, "best_s": seconds[0],
            "median_s": seconds[len(seconds) // 2], "rounds": len(seconds), "wrong": wrong}  # fmt: skip


main()

"""Rows and host nodes without an engine: bitwise against SGLang's lookup, and what the mechanism costs."""

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def rows(options: argparse.Namespace, record: Callable[[Path, str, dict[str, Any]], None]) -> None:
    os.environ["SPARKCTL_ENGRAM_DIR"] = str(options.work / "packed-tp1")
    os.environ.setdefault("SPARKCTL_ENGRAM_BUFFERED", "1" if options.buffered else "0")
    os.environ.setdefault("SPARKCTL_ENGRAM_CACHE_GIB", "2")
    result: dict[str, Any] = {"equal": {}, "cost": []}
    from sglang.srt.layers.engram import EngramEmbedding
    from sglang.srt.runtime_context import get_parallel

    from engram.checkpoint import open_checkpoint
    from sgl_ext.engram.embedding import StoredEngramEmbedding
    from sgl_ext.engram.row_service import get_row_service
    from sgl_ext.engram.step_fetch import StepFetch

    device = torch.device("cuda", 0)
    checkpoint = open_checkpoint(options.work / "model", revision="a" * 40)
    layers = checkpoint.layout.layer_ids
    with get_parallel().override(tp_size=1, tp_rank=0, attn_dp_size=1, attn_cp_size=1, tp_group=None):
        stock, ours, bounds = [], [], []
        for layer in layers:
            bounds.append(checkpoint.layout.column_bounds(layer))
            ours.append(StoredEngramEmbedding(bounds[-1][-1], 256, layer, column_bounds=bounds[-1]))
            with device:
                table = EngramEmbedding(bounds[-1][-1], 256, layer, column_bounds=bounds[-1])
            for name in ("weight", "scale"):
                plane = load_plane(checkpoint, layer, name)
                getattr(table, name).data.view(torch.uint8).copy_(plane)
            stock.append(table)
    service = get_row_service()
    fetch = service.step_fetch = StepFetch(service, device)

    def draw(tokens: int, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        ids = [
            torch.stack(
                [torch.randint(a, b, (tokens,), generator=generator) for a, b in itertools.pairwise(own)],
                1,
            )
            for own in bounds
        ]
        return torch.stack(ids, 1)

    def same(seen: list[torch.Tensor], ids: torch.Tensor) -> bool:
        torch.cuda.synchronize()
        return all(
            torch.equal(out.view(torch.int16), table(ids[:, layer]).view(torch.int16))
            for layer, (out, table) in enumerate(zip(seen, stock, strict=True))
        )

    # Eager step, blocking read, and replayed full graphs with changed ids.
    for tokens in (1, 6, 8, 16, 48, 96):
        ids = draw(tokens, tokens).to(device)
        fetch.start(ids)
        eager = [embed(ids[:, layer]) for layer, embed in enumerate(ours)]
        result["equal"][f"eager-{tokens}"] = same(eager, ids)
        fetch._started.clear()
        result["equal"][f"blocking-{tokens}"] = same(
            [embed(ids[:, layer]) for layer, embed in enumerate(ours)], ids
        )
        result["cost"].append(measure(fetch, ours, stock, draw, tokens, same, result, device))
        print(json.dumps(result["cost"][-1]), flush=True)
    big = draw(5000, 99).to(device)
    result["equal"]["blocking-5000"] = same([embed(big[:, layer]) for layer, embed in enumerate(ours)], big)
    result["error"] = None if fetch.find_error() is None else str(fetch.find_error())
    print(
        {"equal": f"{sum(result['equal'].values())} of {len(result['equal'])}", "error": result["error"]},
        flush=True,
    )
    record(options.out, "rows", result)


def measure(
    fetch: Any,
    ours: list[Any],
    stock: list[Any],
    draw: Any,
    tokens: int,
    same: Any,
    result: dict[str, Any],
    device: torch.device,
) -> dict[str, Any]:
    """A full graph of hash output -> both layers' rows, against the same with SGLang's gather."""
    static = draw(tokens, 1).to(device)
    gap = torch.zeros(1 << 20, device=device)

    def step_ours() -> list[torch.Tensor]:
        fetch.start(static)
        out = []
        for layer, embed in enumerate(ours):
            for _ in range(20):  # work of the layers before, some 2 us each
                gap.add_(1)
            out.append(embed(static[:, layer]))
        return out

    def step_stock() -> list[torch.Tensor]:
        out = []
        for layer, embed in enumerate(stock):
            for _ in range(20):
                gap.add_(1)
            out.append(embed(static[:, layer]))
        return out

    graphs = {}
    for name, step in (("ours", step_ours), ("stock", step_stock)):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        graphs[name] = (graph, out)
    equal = True
    for seed in range(5):
        static.copy_(draw(tokens, 1000 + seed).to(device))
        graphs["ours"][0].replay()
        equal = equal and same(graphs["ours"][1], static)
    result["equal"][f"full-graph-{tokens}"] = equal
    cost: dict[str, Any] = {"tokens": tokens}
    for name in ("stock", "ours", "stock", "ours"):
        graph = graphs[name][0]
        times = []
        for _ in range(200):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
        times.sort()
        cost.setdefault(f"{name}_cached_us", []).append({"p50": times[100], "p95": times[190]})
    cold = []
    for _ in range(40):
        static.copy_(draw(tokens, random.randrange(1 << 30)).to(device))
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        graphs["ours"][0].replay()
        torch.cuda.synchronize()
        cold.append((time.perf_counter() - begin_s) * 1e6)
    cold.sort()
    cost["ours_cold_wall_us"] = {"p50": cold[20], "p95": cold[37]}
    waits = fetch.waits.cpu()
    cost["waits_p95_us_so_far"] = [quantile(histogram.tolist(), 0.95) for histogram in waits]
    return cost


def quantile(histogram: list[int], share: float) -> int:
    left = share * sum(histogram)
    for value, count in enumerate(histogram):
        left -= count
        if left <= 0:
            return value
    return len(histogram)


def load_plane(checkpoint: Any, layer: int, name: str) -> torch.Tensor:
    plane = getattr(checkpoint.table(layer), name)
    return torch.from_file(
        str(plane.path),
        shared=False,
        size=plane.offset_bytes + plane.num_rows * plane.row_bytes,
        dtype=torch.uint8,
    )[plane.offset_bytes :].view(plane.num_rows, plane.row_bytes)

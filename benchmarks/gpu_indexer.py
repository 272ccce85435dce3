"""The indexer's decode step: live-length kernels against SGLang's dense path, on one GPU, in one run.

    python benchmarks/gpu_indexer.py --out O                 128 k live tokens under a capacity of 1 M
    TRITON_INTERPRET=1 python benchmarks/gpu_indexer.py --out O --dry-run    small, on a CPU: does it run

Dense is what SGLang 0.5.23 does off sm_90 and sm_100: slots of the whole capacity, scores, torch.topk, write.
A and B alternate; every time is kept. `equal` compares the selected slots; where they differ, `ties_only`
says whether the scores at which they differ are equal. In a dry run SGLang's scores are wrong (Triton's
interpreter multiplies bf16 by its bits), so only `equal_to_reference` means something there. Raw JSON with
versions goes to O/indexer.json, after every case.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

PAGE_SIZE, HEADS, TOPK = 64, 32, 512
_CALLS_A_GRAPH = 10


def make_case(rows: int, live: int, capacity: int, ratio: int, device: torch.device) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(rows)
    pages = live // PAGE_SIZE + 2
    keys = torch.randint(0, 256, (pages, PAGE_SIZE * 68), dtype=torch.uint8, generator=draw)
    keys[:, PAGE_SIZE * 64 :] = keys[:, PAGE_SIZE * 64 :] % 6 + 122
    slots = torch.randperm(pages * PAGE_SIZE, generator=draw)[:live]
    req_to_token = torch.zeros((rows, capacity * ratio), dtype=torch.int32)
    req_to_token[:, : live * ratio] = (slots.repeat_interleave(ratio) * ratio).to(torch.int32)
    return {
        "q": torch.randn((rows, HEADS, 128), generator=draw).to(device, torch.bfloat16),
        "weights": torch.randn((rows, HEADS), generator=draw).to(device, torch.bfloat16),
        "req": torch.arange(rows, device=device),
        "req_to_token": req_to_token.to(device),
        "lens": torch.full((rows,), live, dtype=torch.int64, device=device),
        "keys": keys.to(device),
        "capacity": capacity,
        "ratio": ratio,
    }


def dense(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """As v41_indexer/scoring.py decode_scores and select_decode where `paged` is false."""
    from sglang.kernels.ops.attention.dsv4.fp4_indexer import fp4_index_logits_decode

    place = torch.arange(case["capacity"], device=case["q"].device)
    valid = place[None, :] < case["lens"][:, None]
    slots = case["req_to_token"][case["req"][:, None], (place * case["ratio"])[None, :]].to(torch.int64)
    slots = (slots // case["ratio"]).masked_fill(~valid, 0)
    scores = fp4_index_logits_decode(case["q"], case["weights"], slots, case["lens"], case["keys"], PAGE_SIZE)
    chosen = scores.topk(TOPK, dim=-1, sorted=False).indices.sort(dim=-1).values
    reach = chosen < case["lens"][:, None]
    chosen = torch.where(reach, slots.gather(1, chosen.clamp_max(case["capacity"] - 1)), -1)
    return chosen.to(torch.int32), scores


def live(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """As sgl_ext/indexer/decode_step.py score_step and write_selection; slots instead of positions."""
    from sgl_ext.indexer.score_kernels import score_live
    from sgl_ext.indexer.score_order import zero_counts
    from sgl_ext.indexer.select_kernels import SlotTarget, select_slots_live

    rows = case["q"].shape[0]
    coarse = zero_counts(rows, case["q"].device)
    scores = score_live(
        case["q"], case["weights"], case["req"], case["req_to_token"], case["lens"], case["keys"],
        capacity=case["capacity"], ratio=case["ratio"], coarse=coarse,
    )  # fmt: skip
    slots = torch.empty((rows, TOPK), dtype=torch.int32, device=case["q"].device)
    target = SlotTarget(out=slots, req=case["req"], req_to_token=case["req_to_token"], ratio=case["ratio"])
    select_slots_live(scores, case["lens"], TOPK, target, coarse)
    return slots, scores


def compare(case: dict[str, Any]) -> dict[str, Any]:
    """Selections, scores, and the live selection against the plain reference on its own scores."""
    from sgl_ext.indexer.reference import select_highest

    (theirs, their_scores), (ours, our_scores) = dense(case), live(case)
    count = int(case["lens"][0])
    apart = (their_scores[:, :count] - our_scores[:, :count]).abs()
    slots = case["req_to_token"][0, : count * case["ratio"] : case["ratio"]] // case["ratio"]
    position_of = {slot: position for position, slot in enumerate(slots.tolist())}
    ties_only = True
    for row in range(ours.shape[0]):
        left, right = set(ours[row].tolist()), set(theirs[row].tolist())
        differing = [float(their_scores[row, position_of[slot]]) for slot in left ^ right if slot >= 0]
        ties_only = ties_only and len(set(differing)) <= 1
    reference = select_highest(our_scores[:, :count].contiguous(), case["lens"], TOPK)
    wanted = torch.where(reference >= 0, slots[reference.clamp_min(0).long()], -1)
    return {
        "equal": bool(torch.equal(ours, theirs)),
        "ties_only": ties_only,
        "equal_to_reference": bool(torch.equal(ours, wanted)),
        "scores_that_differ": int((apart > 0).sum()),
        "largest_score_difference": float(apart.max()),
    }


def time_once(run: Callable[[dict[str, Any]], object], case: dict[str, Any]) -> float:
    if not torch.cuda.is_available():
        start = time.perf_counter()
        run(case)
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run(case)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def capture(run: Callable[[dict[str, Any]], object], case: dict[str, Any]) -> Callable[[object], object]:
    """As decode runs it: a CUDA graph, so that Python and launches do not count. Ten calls a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run(case)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS_A_GRAPH):
            run(case)
    return lambda _case: graph.replay()


def measure(case: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Eagerly, where launches count, and on a GPU also as a CUDA graph."""
    result = alternate({"dense_s": dense, "live_s": live}, case, repeats, 1)
    if torch.cuda.is_available():
        try:
            graphs = {"dense_s": capture(dense, case), "live_s": capture(live, case)}
            result["in_graph"] = alternate(graphs, case, repeats, _CALLS_A_GRAPH)
        except RuntimeError as error:  # kept: what was timed before must not be lost with it
            result["in_graph"] = {"error": f"{type(error).__name__}: {error}"}
    return result


def alternate(
    runs: dict[str, Callable[[dict[str, Any]], object]], case: dict[str, Any], repeats: int, calls: int
) -> dict[str, Any]:
    for run in runs.values():
        run(case)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_idx in range(repeats):
        sides = list(runs.items())
        for name, run in sides if round_idx % 2 == 0 else sides[::-1]:
            times[name].append(time_once(run, case) / calls)
    medians = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    return {"raw": times, "median": medians, "speedup": medians["dense_s"] / medians["live_s"]}


def boot_check(device: torch.device) -> dict[str, Any]:
    """What a rank on sm_12x asks of these kernels before it builds the model."""
    from sgl_ext.indexer.boot_check import CAPACITY, check_indexer, own_kernels

    capacity = CAPACITY if device.type == "cuda" else 150
    topk = TOPK if device.type == "cuda" else 48
    verdict = check_indexer(own_kernels(), device, heads=HEADS, topk=topk, capacity=capacity)
    return dict(verdict.as_json())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    if options.dry_run:
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        from sgl_ext.stand_ins import add_stand_ins

        add_stand_ins()
    device = torch.device("cpu" if options.dry_run else "cuda")
    shapes = [(2, 700, 2000, 1)] if options.dry_run else [
        (rows, live_tokens, 1 << 20, ratio)
        for rows in (1, 6, 24)
        for live_tokens in (1 << 12, 1 << 17)
        for ratio in (1,)
    ] + [(6, 1 << 16, 1 << 19, 2)]  # fmt: skip
    results: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "device": "cpu, interpreted" if options.dry_run else torch.cuda.get_device_name(),
        "dry_run": options.dry_run,
        "versions": {name: metadata.version(name) for name in ("sglang", "torch", "triton")},
        "python": platform.python_version(),
        "command": sys.argv,
        "results": results,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    report["boot_check"] = boot_check(device)
    print("boot check", report["boot_check"], flush=True)
    for rows, live_tokens, capacity, ratio in shapes:
        case = make_case(rows, live_tokens, capacity, ratio, device)
        entry: dict[str, Any] = {"rows": rows, "live": live_tokens, "capacity": capacity, "ratio": ratio}
        entry |= {"compared": compare(case), "timed": measure(case, 2 if options.dry_run else 40)}
        told = {key: value for key, value in entry.items() if key != "timed"}
        in_graph = entry["timed"].get("in_graph", {})
        print(told, entry["timed"]["speedup"], in_graph.get("speedup", in_graph.get("error")), flush=True)
        results.append(entry)
        (options.out / "indexer.json").write_text(json.dumps(report, indent=1) + "\n")
    if report["boot_check"]["problem"] is not None:
        sys.exit(f"the boot check must pass, got {report['boot_check']['problem']}")
    if any("error" in entry["timed"].get("in_graph", {}) for entry in results):
        sys.exit("every case must run as a CUDA graph, got errors (they are in indexer.json)")


if __name__ == "__main__":
    main()

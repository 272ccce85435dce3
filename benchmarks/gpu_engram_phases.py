"""What gpu_engram.py asks of its servers: equality, cached and cold decode, cold prefill."""

import argparse
import json
import random
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draft_gap import measure_gaps, write_slice  # beside this file, as the next two
from engram_timeline import wait_for_timeline
from kernel_times import wait_for_trace

FIRST_TOKEN, LAST_TOKEN = 260, 3900  # ordinary pieces of the tiny tokenizer: no bytes, no special tokens


@dataclass(slots=True, kw_only=True)
class Server:
    side: str  # stock, ours
    spec: str  # plain, dspark
    graph: str  # full, breakable, disabled
    port: int
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    ready_s: float = 0.0
    error: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.side}-{self.spec}-{self.graph}"


def get(server: Server, path: str, timeout_s: float = 30) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=timeout_s) as reply:
        return reply.read().decode()


def post(server: Server, path: str, body: dict[str, Any], timeout_s: float = 120) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return reply.read().decode()


def generate(
    server: Server,
    prompts: list[list[int]],
    tokens: int,
    timeout_s: float = 580,
    temperature: float = 0.0,
    **options: Any,
) -> list[dict[str, Any]]:
    sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": prompts, "sampling_params": sampling} | options
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return json.loads(reply.read())


def flush(server: Server) -> None:
    """Empties the prefix cache; SGLang refuses while it still ends a request."""
    for attempt in range(20):
        try:
            get(server, "/flush_cache")
            return
        except urllib.error.HTTPError:
            if attempt == 19:
                raise
            time.sleep(0.25)


def make_prompt(seed: int, length: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(length)]


def equality_prompts(count: int) -> list[list[int]]:
    """16 to 16,384 tokens: evenly in the logarithm up to 4,096, and four longer ones."""
    lengths = [round(16 * 256 ** (idx / (count - 5))) for idx in range(count - 4)] + [
        6144,
        8500,
        12288,
        16384,
    ]
    return [make_prompt(1000 + idx, length) for idx, length in enumerate(lengths)]


def read_metrics(server: Server) -> dict[str, float]:
    values = {}
    for line in get(server, "/metrics").splitlines():
        if line.startswith("sparkctl_engram"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    return values


def metric_change(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name, 0.0)
    }


Pair = tuple[Server, ...]  # stock first; equality takes two


def phase_equality(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """One prompt at a time: stock, ours, stock once more: only what stock itself repeats can be asked
    of us. Prefix caches are emptied between, so that every run computes the whole prompt."""
    prompts = equality_prompts(options.prompts)
    stock = pair[0]

    def run(server: Server) -> list[dict[str, Any]]:
        flush(server)
        return [ask_greedy(server, prompt, options.new_tokens) for prompt in prompts]

    with ThreadPoolExecutor(2) as pool:
        first, mine = pool.map(run, pair)
    second = run(stock)
    rows = []
    for prompt, one, other, again in zip(prompts, first, mine, second, strict=True):
        at = first_difference(one["tokens"], other["tokens"])
        rows.append(
            {
                "length": len(prompt),
                "ours_equal": one["tokens"] == other["tokens"],
                "stock_repeats": one["tokens"] == again["tokens"],
                "first_difference": at,
                # Log-probability of the best token over the second best: noise, or another result?
                "stock_margin": one["margins"][at] if at < len(one["margins"]) else None,
                "tokens": {"stock": one["tokens"], "ours": other["tokens"], "stock_again": again["tokens"]},
            }
        )
    repeated = [row for row in rows if row["stock_repeats"]]
    return {
        "prompts": len(rows),
        "stock_repeats": len(repeated),
        "equal": sum(row["ours_equal"] for row in rows),
        "equal_where_stock_repeats": sum(row["ours_equal"] for row in repeated),
        "new_tokens": options.new_tokens,
        "distinct_tokens": len({token for row in rows for token in row["tokens"]["stock"]}),
        "rows": rows,
    }


def ask_greedy(server: Server, prompt: list[int], tokens: int) -> dict[str, Any]:
    (reply,) = generate(server, [prompt], tokens, return_logprob=True, top_logprobs_num=2)
    best = reply["meta_info"]["output_top_logprobs"]
    return {
        "tokens": reply["output_ids"],
        "margins": [round(pair[0][0] - pair[1][0], 4) for pair in best if pair and len(pair) > 1],
    }


def first_difference(left: list[int], right: list[int]) -> int:
    return next(
        (idx for idx, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


def phase_cached(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """Decode of the same prompts over and over, stock and ours in turn.

    Rows are in memory as far as the replies repeat: look at missed_rows in metrics_change, or start ours with
    --ours-env SPARKCTL_ENGRAM_BACKEND=ram, which holds every row.
    """
    result: dict[str, Any] = {}
    for batch in (1, 8, 16):
        prompts = [make_prompt(5000 + 100 * batch + idx, 128) for idx in range(batch)]
        for server in pair:  # fills row cache and prefix cache
            generate(server, prompts, options.decode_tokens)
        before = {server.side: read_metrics(server) for server in pair}
        runs: dict[str, list[dict[str, float]]] = {server.side: [] for server in pair}
        for repeat in range(options.repeats):
            for server in pair if repeat % 2 == 0 else pair[::-1]:
                runs[server.side].append(time_decode(server, prompts, options.decode_tokens))
        rates = {
            side: statistics.median(run["tokens_per_s"] for run in values) for side, values in runs.items()
        }
        after = settle_metrics(pair)
        change = {side: metric_change(before[side], after[side]) for side in runs}
        result[str(batch)] = {
            "runs": runs,
            "tokens_per_s": rates,
            "over_stock": {side: rate / rates["stock"] for side, rate in rates.items()},
            "exposed_wait_p95_us": {side: wait_quantiles(values, 0.95) for side, values in change.items()},
            "metrics_change": change,
        }
        print(pair[0].spec, "batch", batch, rates, result[str(batch)]["over_stock"], flush=True)
        print("    exposed wait", result[str(batch)]["exposed_wait_p95_us"], flush=True)
    return result


def settle_metrics(pair: Pair) -> dict[str, dict[str, float]]:
    """The counters as they are now: the engine publishes once a second, between steps, a period late."""
    for _ in range(2):
        time.sleep(1.1)
        for server in pair:
            generate(server, [make_prompt(1, 16)], 2)
    return {server.side: read_metrics(server) for server in pair}


def time_decode(server: Server, prompts: list[list[int]], tokens: int, **sampling: Any) -> dict[str, float]:
    """Two lengths; their difference is decode alone."""
    short = 8
    start_s = time.perf_counter()
    generate(server, prompts, short, **sampling)
    middle_s = time.perf_counter()
    replies = generate(server, prompts, tokens, **sampling)
    end_s = time.perf_counter()
    seconds = (end_s - middle_s) - (middle_s - start_s)
    meta = replies[0]["meta_info"]
    return {
        "seconds": seconds,
        "tokens_per_s": len(prompts) * (tokens - short) / seconds,
        "verify_steps": meta.get("spec_verify_ct", tokens),
    }


def wait_quantiles(change: dict[str, float], quantile: float) -> dict[str, str]:
    """Per layer, the bound (microseconds) below which this share of the steps waited."""
    layers: dict[str, dict[float, float]] = {}
    for name, value in change.items():
        if name.startswith("sparkctl_engram_exposed_wait_steps_total"):
            labels = dict(part.split("=") for part in name.partition("{")[2].rstrip("}").split(","))
            layers.setdefault(labels["layer"].strip('"'), {})[float(labels["le"].strip('"'))] = value
    found = {}
    for layer, counts in layers.items():
        total = counts.get(float("inf"), 0)
        reached = [bound for bound, count in sorted(counts.items()) if total and count >= quantile * total]
        found[layer] = f"<= {reached[0]} us of {total:.0f} steps" if reached else "none"
    return found


def phase_cold(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """Decode of sampled (diverse) tokens never seen before: rows come from the disk."""
    result: dict[str, Any] = {}
    for batch in (1, 8, 16):
        runs: dict[str, list[dict[str, Any]]] = {server.side: [] for server in pair}
        before = settle_metrics(pair)
        for repeat in range(options.repeats):
            prompts = [make_prompt(900_000 + 1000 * batch + 50 * repeat + idx, 64) for idx in range(batch)]
            for server in pair if repeat % 2 == 0 else pair[::-1]:
                runs[server.side].append(time_decode(server, prompts, 256, temperature=1.0))
        after = settle_metrics(pair)
        change = {side: metric_change(before[side], after[side]) for side in runs}
        result[str(batch)] = {
            "runs": runs,
            "metrics_change": change,
            "exposed_wait_p50_us": {side: wait_quantiles(values, 0.5) for side, values in change.items()},
            "exposed_wait_p95_us": {side: wait_quantiles(values, 0.95) for side, values in change.items()},
        }
        rates = {side: [round(run["tokens_per_s"]) for run in values] for side, values in runs.items()}
        print("cold", pair[0].spec, batch, rates, result[str(batch)]["exposed_wait_p95_us"], flush=True)
    return result


def phase_prefill(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """Unique random prompts: every row is cold, nothing repeats."""
    result: dict[str, Any] = {}
    for length in (8192, 32768):
        runs: dict[str, list[dict[str, float]]] = {server.side: [] for server in pair}
        for server in pair:  # kernels of this shape
            generate(server, [make_prompt(70 + length, length)], 1)
        before = settle_metrics(pair)
        for repeat in range(options.repeats):
            prompt = make_prompt(3_000_000 + length + repeat, length)
            for server in pair if repeat % 2 == 0 else pair[::-1]:
                begin = time.perf_counter()
                generate(server, [prompt], 1)
                runs[server.side].append({"seconds": time.perf_counter() - begin})
                flush(server)
        after = settle_metrics(pair)
        result[str(length)] = {
            "runs": runs,
            "metrics_change": {side: metric_change(before[side], after[side]) for side in runs},
        }
        print(
            "prefill",
            pair[0].spec,
            length,
            {side: [round(run["seconds"], 4) for run in values] for side, values in runs.items()},
            flush=True,
        )
    return result


def phase_timeline(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """Profiled, of the side with rows from disk: one cold prompt, and cold decode of eight requests."""
    server = pair[1]
    layers = engram_layers(server)
    prompts = [make_prompt(4_000_000 + idx, 64) for idx in range(8)]
    cases: dict[str, tuple[int, Callable[[], Any]]] = {
        "prefill": (1 << 20, lambda: generate(server, [make_prompt(4_100_000, 32768)], 1)),
        "decode": (1 << 14, lambda: generate(server, prompts, 16, temperature=1.0)),
    }
    result: dict[str, Any] = {"layers": layers}
    for name, (min_bytes, ask) in cases.items():
        folder = options.out / f"trace-{Path(server.log).parent.name}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        flush(server)
        if name == "decode":  # its prefill is not in the trace
            generate(server, prompts, 1)
        profile(server, folder, ask)
        result[name] = wait_for_timeline(folder, layers, min_bytes, limit_s=30)
        print("timeline", name, {k: v for k, v in result[name].items() if k != "rows"}, flush=True)
    return result


def phase_draft_gap(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """Profiled, of the DSPARK engine with rows from disk: what lies between a draft block and its reads.

    The same prompts without the profiler first, for the length of a step that it does not stretch.
    """
    server = next(server for server in pair if server.side == "ours")
    if server.spec != "dspark":
        return {"left_out": f"no draft block with --spec {server.spec}"}
    result: dict[str, Any] = {}
    for batch, temperature in ((1, 0.0), (8, 0.0), (16, 0.0), (8, 1.0)):
        name = f"batch-{batch}" + ("-sampled" if temperature else "")
        result[name] = profile_gap(server, options.out / f"trace-gap-{name}", batch, temperature)
        print("draft-gap", name, json.dumps(result[name].get("median", result[name])), flush=True)
    return result


def profile_gap(server: Server, folder: Path, batch: int, temperature: float) -> dict[str, Any]:
    prompts = [make_prompt(6_000_000 + 100 * batch + idx, 64) for idx in range(batch)]
    generate(server, prompts, 64, temperature=temperature)  # kernels of this shape
    unprofiled = time_decode(server, prompts, 64, temperature=temperature)
    folder.mkdir(parents=True, exist_ok=True)
    profile(server, folder, lambda: generate(server, prompts, 32, temperature=temperature))
    found = wait_for_trace(folder, limit_s=20)
    if found is None:
        return {"error": f"no whole trace in {folder}"}
    trace, events = found
    gaps = measure_gaps(events, len(engram_layers(server)))
    if "error" not in gaps:
        write_slice(events, folder / "slice.json.gz")
        trace.unlink()  # of megabytes; the slice holds some of its steps
    return {"unprofiled": unprofiled} | gaps


def engram_layers(server: Server) -> list[int]:
    model = Path(server.command[server.command.index("--model-path") + 1])
    return list(json.loads((model / "config.json").read_text())["text_config"]["engram_layer_ids"])


def profile(server: Server, folder: Path, ask: Callable[[], Any]) -> None:
    post(server, "/start_profile", {"output_dir": str(folder), "activities": ["GPU"]})
    ask()
    post(server, "/stop_profile", {})


PHASES: dict[str, Callable[[Pair, argparse.Namespace], dict[str, Any]]] = {
    "equality": phase_equality,
    "cached": phase_cached,
    "cold": phase_cold,
    "prefill": phase_prefill,
    "timeline": phase_timeline,
    "draft-gap": phase_draft_gap,
}

"""Indexer, expert backends, TP 1 against TP 2, and split prefill rows, on two GPUs of one host; raw JSON.

    python benchmarks/gpu_engram.py build --work W --pack-tp 1       once: the checkpoint
    python benchmarks/gpu_two.py --work W --out O [--seconds 340]    everything within --seconds
    python benchmarks/gpu_two.py --work W --out O --dry-run          on a CPU: a small model, few prompts

At once: the indexer's kernels (GPU 1) and the expert backends (GPU 0), each a process of its own, and four
engines: TP 1, TP 2 with one and two groups of experts, TP 2 with prefill rows split. When all have answered:
greedy equality with TP 1, TP 3's heads in the attention kernel, then cold prefill with and without split rows
in turn (everything else stopped), then one profiled prompt of each. parts.json is written after each part; a
part that fails or is cut off is recorded and the others go on. The engines keep SGLang's own Engram tables.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpu_engram_phases  # beside this file, as the next
import gpu_parallel
from gpu_engram import await_ready, describe, record, start, stop
from gpu_engram_phases import Server, equality_prompts, first_difference, flush, generate, make_prompt
from kernel_times import sum_kernels

_SPLIT = {"SPARKCTL_SEQUENCE_PARALLEL": "prefill"}
_RESERVE_S = 12  # to stop the engines and write
LAYOUTS = (
    gpu_parallel.Layout(name="tp1", tp=1),
    gpu_parallel.Layout(name="tp2-ep1", tp=2),
    gpu_parallel.Layout(name="tp2-ep1-split", tp=2, environment=_SPLIT),
    gpu_parallel.Layout(name="tp2-ep2", tp=2, ep=2),
    gpu_parallel.Layout(name="tp2-ep1-disk", tp=2),  # Engram rows from packed files, exchanged over NCCL
)


class Run:
    """Results so far, the deadline, and what must be stopped at the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begin = time.monotonic()
        self.parts: dict[str, Any] = {}
        self.servers: dict[str, Server] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = threading.Lock()

    def left_s(self) -> float:
        return float(self.options.seconds) - (time.monotonic() - self.begin) - _RESERVE_S

    def save(self, name: str, result: dict[str, Any]) -> None:
        with self.lock:
            self.parts[name] = result | {"ended_after_s": round(time.monotonic() - self.begin, 1)}
            if not self.options.dry_run:
                record(self.options.out, "parts", {"parts": self.parts})
                return
            content = {"dry_run": True, "command": sys.argv, "parts": self.parts}
            (self.options.out / "parts.json").write_text(json.dumps(content, indent=1) + "\n")

    def attempt(self, name: str, part: Callable[[], dict[str, Any]]) -> None:
        try:
            result = part()
        except Exception:  # noqa: BLE001, recorded: the other parts go on
            result = {"error": traceback.format_exc()}
        self.save(name, result)
        short = {key: value for key, value in result.items() if key not in ("rows", "raw", "servers")}
        print(name, json.dumps(short, default=str)[:1500], f"{self.left_s():.0f} s left", flush=True)


def start_process(run: Run, name: str, gpu: int, command: list[str]) -> None:
    """Niced: what it compiles must not slow the engines down."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu), "MAX_JOBS": "20"}
    if run.options.dry_run:
        environment["TRITON_INTERPRET"] = "1"
    with (run.options.out / f"{name}.log").open("wb") as log:
        run.processes[name] = subprocess.Popen(
            ["nice", "-n", "15", sys.executable, *command],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def start_processes(run: Run) -> None:
    here, out = Path(__file__).parent, str(run.options.out)
    dry = ["--dry-run"] if run.options.dry_run else []
    model = str(run.options.work / "model")
    commands = {
        "indexer": [str(here / "gpu_indexer.py"), "--out", out, *dry],
        "experts": [str(here / "gpu_experts.py"), "--model", model, "--out", out, *dry],
    }
    for name, gpu in (("indexer", 1), ("experts", 0)):
        if name not in run.options.without:
            start_process(run, name, gpu, commands[name])


def read_process(run: Run, name: str, limit_s: float) -> dict[str, Any]:
    if name not in run.processes:
        return {"left_out": True}
    process, path = run.processes[name], run.options.out / f"{name}.json"
    try:
        code: int | None = process.wait(max(limit_s, 0))
    except subprocess.TimeoutExpired:
        code = None
    log = (run.options.out / f"{name}.log").read_text(errors="replace")[-1500:]
    return {
        "exit_code": code if code is not None else "cut off",
        "results": json.loads(path.read_text()) if path.exists() else None,
        "log": log,
    }


def check_heads(run: Run) -> dict[str, Any]:
    dry = ["--dry-run"] if run.options.dry_run else []
    command = [str(Path(__file__).parent / "gpu_heads.py"), "--out", str(run.options.out), *dry]
    start_process(run, "heads", 1, command)
    return read_process(run, "heads", min(45, run.left_s()))


def start_engines(run: Run) -> dict[str, Any]:
    options = run.options
    for idx, layout in enumerate(layout for layout in LAYOUTS if layout.name in options.layouts):
        server = gpu_parallel.make_server(options, layout, 0, options.port + 100 * idx)
        if not options.dry_run:
            server.command += ["--cuda-graph-max-bs-decode", "4"]
            for name in ("--speculative-algorithm", "--speculative-dspark-block-size"):
                at = server.command.index(name)
                del server.command[at : at + 2]
            if not layout.name.endswith("-disk"):
                server.environment.pop("SPARKCTL_ENGRAM_DIR")
            server.environment["SGLANG_TORCH_PROFILER_DIR"] = str(options.out / f"trace-{layout.name}")
        elif layout.environment:
            server.environment["SPARKCTL_SEQUENCE_PARALLEL_FROM"] = "16"
        run.servers[layout.name] = server
    servers = run.servers.values()
    if options.dry_run:  # two cores: one after the other
        for server in servers:
            start(server)
            await_ready(server, max(run.left_s(), 1))
    else:
        for server in servers:
            start(server)
    with ThreadPoolExecutor(len(run.servers)) as pool:
        list(pool.map(lambda server: first_reply(run, server), servers))
    return {"servers": {name: describe(server) for name, server in run.servers.items()}} | {
        "ready": {name: server.error or server.ready_s for name, server in run.servers.items()}
    }


def first_reply(run: Run, server: Server) -> None:
    """The first forwards compile: each kind of step once, all engines at the same time."""
    limit_s = max(min(run.left_s(), run.options.start_limit_s), 1)
    if not run.options.dry_run:
        await_ready(server, limit_s)
    if server.error:
        return
    begin = time.monotonic()
    try:
        for prompt in run.options.first_prompts:
            generate(server, [prompt], 4, timeout_s=limit_s)
    except Exception as error:  # noqa: BLE001, recorded: the other engines go on
        server.error = f"first reply: {error!r}"
    server.facts["first_replies_s"] = time.monotonic() - begin


def compare_tokens(run: Run) -> dict[str, Any]:
    """Every engine answers the prompts one at a time; all engines at the same time."""
    usable = {name: server for name, server in run.servers.items() if not server.error}
    result: dict[str, Any] = {"missing": {n: s.error for n, s in run.servers.items() if s.error}}
    with ThreadPoolExecutor(len(usable) or 1) as pool:
        answers = dict(zip(usable, pool.map(lambda server: ask(run, server), usable.values()), strict=True))
    if "tp1" not in answers:
        return result | {"error": "TP 1 gave no answers to compare with"}
    for name in [name for name in answers if name != "tp1"]:
        result[name] = compare(answers["tp1"], answers[name])
    if {"tp2-ep1", "tp2-ep1-split"} <= set(answers):
        result["split against whole rows"] = compare(answers["tp2-ep1"], answers["tp2-ep1-split"])
    if {"tp2-ep1", "tp2-ep1-disk"} <= set(answers):
        result["rows from disk against tables"] = compare(answers["tp2-ep1"], answers["tp2-ep1-disk"])
    return result | {"rows": answers}


def ask(run: Run, server: Server) -> list[dict[str, Any]]:
    answers = []
    flush(server)
    for prompt in run.options.prompt_list:
        if run.left_s() < run.options.equality_leaves_s:
            break
        (reply,) = generate(server, [prompt], run.options.new_tokens, return_logprob=True, top_logprobs_num=2)
        meta = reply["meta_info"]
        answers.append(
            {
                "length": len(prompt),
                "tokens": reply["output_ids"],
                "logprobs": [entry[0] for entry in meta["output_token_logprobs"]],
                "margins": [pair[0][0] - pair[1][0] for pair in meta["output_top_logprobs"]],
            }
        )
    return answers


def compare(base: list[dict[str, Any]], seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Where tokens differ: by how much the base preferred its own, and how far log-probabilities lie apart
    before that, which is the noise of the layout."""
    differing, apart = [], 0.0
    for one, other in zip(base, seen, strict=False):
        at = first_difference(one["tokens"], other["tokens"])
        pairs = zip(one["logprobs"][:at], other["logprobs"][:at], strict=True)
        apart = max([apart, *(abs(left - right) for left, right in pairs)])
        if at < len(one["tokens"]):
            differing.append({"length": one["length"], "at": at, "margin": one["margins"][at]})
    count = min(len(base), len(seen))
    return {
        "prompts": count,
        "equal": count - len(differing),
        "largest_logprob_difference_before": apart,
        "differing": differing,
    }


def time_split(run: Run) -> dict[str, Any]:
    """Cold prompts, each asked of both engines, the first of the two in turn; nothing else runs."""
    pair = [run.servers["tp2-ep1"], run.servers["tp2-ep1-split"]]
    if any(server.error for server in pair):
        return {"error": [server.error for server in pair]}
    result: dict[str, Any] = {}
    for length, repeats in run.options.split_lengths:
        raw: dict[str, list[float]] = {"whole": [], "split": []}
        tokens_equal = []
        for idx in range(repeats + 1):  # the first round warms
            prompt = make_prompt(7000 + 10 * length + idx, length)
            replies = {}
            sides = list(zip(raw, pair, strict=True))
            for side, server in sides if idx % 2 == 0 else sides[::-1]:
                flush(server)
                begin = time.monotonic()
                (reply,) = generate(server, [prompt], 1)
                seconds = time.monotonic() - begin
                replies[side] = reply["output_ids"]
                if idx:
                    raw[side].append(length / seconds)
            tokens_equal.append(replies["whole"] == replies["split"])
            if run.left_s() < 5:
                break
        if raw["split"]:
            medians = {side: statistics.median(values) for side, values in raw.items()}
            result[str(length)] = {
                "tokens_per_s": medians,
                "split_over_whole": medians["split"] / medians["whole"],
                "first_tokens_equal": f"{sum(tokens_equal)} of {len(tokens_equal)}",
                "raw": raw,
            }
            run.save("split (so far)", result)
    return result


def profile_split(run: Run) -> dict[str, Any]:
    """Where one cold prompt's time goes: kernels by name, of each rank's trace."""
    result: dict[str, Any] = {}
    length = run.options.profile_length
    for name in ("tp2-ep1", "tp2-ep1-split"):
        server, folder = run.servers[name], run.options.out / f"trace-{name}"
        if server.error or run.left_s() < 15:
            result[name] = {"error": server.error or "no time left"}
            continue
        folder.mkdir(exist_ok=True)
        flush(server)
        body = {"output_dir": str(folder), "activities": ["GPU"]}
        gpu_engram_phases.post(server, "/start_profile", body)
        generate(server, [make_prompt(123, length)], 1)
        gpu_engram_phases.post(server, "/stop_profile", {})
        result[name] = sum_kernels(folder, limit_s=min(20, run.left_s()))
    return result | {"length": length}


def pause(run: Run, number: signal.Signals) -> None:
    for process in run.processes.values():
        if process.poll() is None:
            os.killpg(process.pid, number)


def measure(run: Run) -> None:
    start_processes(run)
    run.attempt("engines", lambda: start_engines(run))
    run.attempt("equality", lambda: compare_tokens(run))
    run.attempt("indexer", lambda: read_process(run, "indexer", min(60, run.left_s())))
    run.attempt("heads", lambda: check_heads(run))
    pause(run, signal.SIGSTOP)
    try:
        run.attempt("split", lambda: time_split(run))
        if not run.options.dry_run:
            run.attempt("profile", lambda: profile_split(run))
    finally:
        pause(run, signal.SIGCONT)
    run.attempt("experts", lambda: read_process(run, "experts", run.left_s()))
    reports = run.options.out.glob("*/rank-*.json")
    run.save("reports", {f"{p.parent.name}/{p.name}": json.loads(p.read_text()) for p in sorted(reports)})


def end(run: Run) -> None:
    for process in run.processes.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for server in run.servers.values():
        stop(server)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=340)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--port", type=int, default=33500)
    parser.add_argument(
        "--start-limit-s", type=float, default=150, help="engines not up by then are left out"
    )
    parser.add_argument("--without", nargs="*", default=[], choices=("indexer", "experts"))
    parser.add_argument("--layouts", nargs="*", default=[layout.name for layout in LAYOUTS])
    options = parser.parse_args()
    options.work, options.out = options.work.absolute(), options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    small = options.dry_run
    if small:
        gpu_engram_phases.LAST_TOKEN = 900  # of the small model's 1,024
        gpu_parallel.build_small(options.work)
    options.new_tokens = 4 if small else 16
    options.prompt_list = [make_prompt(1, 16), make_prompt(2, 700)] if small else equality_prompts(64)
    sizes = (16, 300) if small else (16, 300, 4096, 16384)
    options.first_prompts = [make_prompt(30 + idx, size) for idx, size in enumerate(sizes)]
    options.split_lengths = ((300, 1),) if small else ((16384, 7), (4096, 7), (65000, 3))
    options.profile_length = 16384
    options.equality_leaves_s = 0 if small else 75
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit must not leave engines behind
    run = Run(options)
    try:
        measure(run)
    finally:
        end(run)
    failed = [name for name, part in run.parts.items() if part.get("error") or part.get("exit_code")]
    if failed:
        sys.exit(f"every part must end without an error, got errors in: {', '.join(failed)} ({options.out})")


if __name__ == "__main__":
    main()

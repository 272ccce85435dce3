"""V4.1 at TP 1, 3 and 4 over four GPUs of one host, in one run of ten minutes; raw JSON.

    python benchmarks/gpu_engram.py build --work W --pack-tp 1 3 4 --expert-width 768
                                              once: checkpoint and packed tables; 768 divides by 3 and 4 ranks
    python benchmarks/gpu_parallel.py --work W --out O                 on four GPUs
    python benchmarks/gpu_parallel.py --work W --out O --dry-run       on a CPU: a small model, few prompts

Layouts: TP 1 (the base); TP 3, heads padded in whole groups; TP 4 with 4, 2 and 1 groups of experts; each
with the plugin. For each: greedy tokens and best log-probabilities equal to the base's, decode at batch 1, 4
and 16, cold prefill, and for the last a rank killed under load. Layouts that fit beside each other start at
once. A layout's result is written as soon as it is there; one that fails is recorded and the others go on.

Not in here: the plugin's rows bit by bit and its collective (gpu_engram_rows.py); prefill rows split over
the ranks (gpu_two.py).
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gpu_engram_phases  # beside this file, as the next
from gpu_engram import await_ready, describe, record, start, stop
from gpu_engram_phases import Server, equality_prompts, flush, generate, make_prompt

_KILL_LIMIT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    name: str
    tp: int
    ep: int = 1
    wave: int = 0  # layouts of one wave run at once, on GPUs of their own
    environment: dict[str, str] = field(default_factory=dict)


GPU_LAYOUTS = (
    Layout(name="tp1", tp=1),
    Layout(name="tp3-ep1", tp=3),
    Layout(name="tp4-ep4", tp=4, ep=4, wave=1),
    Layout(name="tp4-ep2", tp=4, ep=2, wave=2),
    Layout(name="tp4-ep1", tp=4, wave=3),
)
CPU_LAYOUTS = (
    Layout(name="tp1", tp=1),
    Layout(
        name="tp2-ep2-split-rows",
        tp=2,
        ep=2,
        wave=1,
        environment={"SPARKCTL_SEQUENCE_PARALLEL": "prefill", "SPARKCTL_SEQUENCE_PARALLEL_FROM": "16"},
    ),
)


def make_server(options: argparse.Namespace, layout: Layout, first_gpu: int, port: int) -> Server:
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(options.work / "model"),
        "--host", "127.0.0.1", "--port", str(port), "--tp-size", str(layout.tp), "--ep-size", str(layout.ep),
        "--skip-server-warmup", "--log-level", "info",
    ]  # fmt: skip
    variables = {**os.environ, **layout.environment, "SPARKCTL_REPORT_DIR": str(options.out / layout.name)}
    (options.out / layout.name).mkdir(parents=True, exist_ok=True)
    if options.dry_run:
        command += [
            "--device", "cpu", "--dtype", "float32", "--max-total-tokens", "4096", "--context-length", "2048",
            "--max-running-requests", "4", "--chunked-prefill-size", "512", "--sampling-backend", "pytorch",
            "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
            "--mem-fraction-static", "0.8", "--grammar-backend", "none",
        ]  # fmt: skip
        binding = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(layout.tp))
        variables |= {
            "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": binding,
        }  # fmt: skip
    else:
        command += [
            "--mem-fraction-static", "0.7", "--max-running-requests", "16", "--chunked-prefill-size", "8192",
            "--fp8-gemm-backend", "triton", "--enable-metrics", "--speculative-algorithm", "DSPARK",
            "--speculative-dspark-block-size", "5", "--cuda-graph-backend-prefill", "disabled",
            "--max-total-tokens", "147456", "--watchdog-timeout", "1800", "--min-free-slots-delay", "1",
            # FlashInfer's experts, autotune and fused all-reduce are compiled for minutes, and forms of the
            # last use NVLink multicast, which not every host grants: NCCL alone, as between Sparks.
            "--moe-runner-backend", "marlin", "--disable-flashinfer-autotune",
            "--enforce-disable-flashinfer-allreduce-fusion", "--disable-custom-all-reduce",
        ]  # fmt: skip
        variables |= {
            "CUDA_VISIBLE_DEVICES": ",".join(str(first_gpu + idx) for idx in range(layout.tp)),
            "SPARKCTL_ENGRAM_DIR": str(options.work / f"packed-tp{layout.tp}"),
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            # SGLang refuses GPUs with unequal free memory, which several engines starting at once have.
            "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
            "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
            "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
        }
    return Server(
        side="ours", spec="dspark", graph=layout.name, port=port, command=command,
        environment=variables, log=options.out / f"{layout.name}.log",
    )  # fmt: skip


def ask(server: Server, prompts: list[list[int]], new_tokens: int) -> list[dict[str, Any]]:
    """One at a time, each with an empty prefix cache: tokens and their log-probabilities."""
    answers = []
    flush(server)
    for prompt in prompts:
        (reply,) = generate(server, [prompt], new_tokens, return_logprob=True)
        best = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
        answers.append({"length": len(prompt), "tokens": reply["output_ids"], "logprobs": best})
    return answers


def compare(base: list[dict[str, Any]], seen: list[dict[str, Any]]) -> dict[str, Any]:
    rows = []
    for one, other in zip(base, seen, strict=True):
        same = one["tokens"] == other["tokens"]
        pairs = zip(one["logprobs"], other["logprobs"], strict=True)
        apart = max(abs(a - b) for a, b in pairs) if same else None
        rows.append({"length": one["length"], "equal": same, "largest_logprob_difference": apart})
    known = [row["largest_logprob_difference"] for row in rows if row["equal"]]
    return {
        "prompts": len(rows),
        "equal": sum(row["equal"] for row in rows),
        "largest_logprob_difference": max(known, default=None),
        "rows": rows,
    }


def time_decode(server: Server, batch: int, tokens: int) -> dict[str, Any]:
    """Three rounds; the prompts are in the prefix cache after the first reply."""
    prompts = [make_prompt(500 + idx, 64) for idx in range(batch)]
    generate(server, prompts, 4)
    rounds = []
    for _ in range(3):
        begin = time.monotonic()
        generate(server, prompts, tokens)
        rounds.append(batch * tokens / (time.monotonic() - begin))
    return {"batch": batch, "tokens_per_s": statistics.median(rounds), "raw": rounds}


def time_prefill(server: Server, length: int) -> dict[str, Any]:
    rounds = []
    for seed in range(3):
        flush(server)
        begin = time.monotonic()
        generate(server, [make_prompt(900 + seed, length)], 1)
        rounds.append(length / (time.monotonic() - begin))
    return {"tokens": length, "tokens_per_s": statistics.median(rounds), "raw": rounds}


def kill_a_rank(server: Server) -> dict[str, Any]:
    """SIGKILL to one scheduler while a reply is on its way: how long until nothing of the engine is left."""
    assert server.process is not None
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(generate, server, [make_prompt(77, 64)], 400)
        time.sleep(1.0)
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "-g", str(server.process.pid)], capture_output=True, text=True
        ).stdout
        ranks = [line.split()[0] for line in listed.splitlines() if "scheduler" in line]
        if not ranks:
            return {"error": "no scheduler process found", "processes": listed}
        begin = time.monotonic()
        os.kill(int(ranks[-1]), signal.SIGKILL)
        problem = reply.exception(timeout=_KILL_LIMIT_S)
        reported_s = time.monotonic() - begin
        try:
            server.process.wait(_KILL_LIMIT_S)
            down_s: float | None = time.monotonic() - begin
        except subprocess.TimeoutExpired:
            down_s = None
    return {"killed": ranks[-1], "client_saw": repr(problem), "reported_s": reported_s, "down_s": down_s}


def run_layout(
    options: argparse.Namespace, layout: Layout, server: Server, base: list[dict[str, Any]] | None, last: bool
) -> dict[str, Any]:
    result: dict[str, Any] = {"layout": {"tp": layout.tp, "ep": layout.ep}, "server": describe(server)}
    if server.error:
        return result | {"error": server.error}
    prompts = options.prompt_list
    result["answers"] = ask(server, prompts, options.new_tokens)
    if base is not None:
        result["against_tp1"] = compare(base, result["answers"])
    result["decode"] = [time_decode(server, batch, options.decode_tokens) for batch in options.batches]
    result["prefill"] = [time_prefill(server, length) for length in options.lengths]
    result["reports"] = {
        path.name: json.loads(path.read_text())["details"].get("experts")
        for path in sorted((options.out / layout.name).glob("rank-*.json"))
    }
    if last:
        result["rank_killed"] = kill_a_rank(server)
    return result


def run_wave(options: argparse.Namespace, wave: list[Layout], results: dict[str, Any], is_last: bool) -> None:
    servers, first_gpu = [], 0
    for idx, layout in enumerate(wave):
        servers.append(make_server(options, layout, first_gpu, options.port + 100 * idx))
        first_gpu += layout.tp
    try:
        for server in servers:
            start(server)
        for layout, server in zip(wave, servers, strict=True):
            await_ready(server, options.start_limit_s)
            base = results.get("tp1", {}).get("answers")
            last = is_last and layout is wave[-1]
            attempt(
                results,
                layout.name,
                lambda s=server, y=layout, b=base, z=last: run_layout(options, y, s, b, z),
            )
            print(
                layout.name, {key: results[layout.name].get(key) for key in ("error", "decode")}, flush=True
            )
            save(options, results)
    finally:
        for server in servers:
            stop(server)


def save(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """gpu_engram.py's record asks nvidia-smi, which a dry run has not."""
    if not options.dry_run:
        record(options.out, "parallel", {"layouts": results})
        return
    options.out.mkdir(parents=True, exist_ok=True)
    content = {"dry_run": True, "command": sys.argv, "layouts": results}
    (options.out / "parallel.json").write_text(json.dumps(content, indent=1) + "\n")


def attempt(results: dict[str, Any], name: str, run: Callable[[], dict[str, Any]]) -> None:
    try:
        results[name] = run()
    except Exception as error:  # noqa: BLE001, recorded: the other layouts go on
        results[name] = {"error": repr(error)}


def build_small(work: Path) -> None:
    from sgl_ext.tiny_model.v41 import build_v41
    from sgl_ext.tiny_model.v41_sizes import CPU

    build_v41(work / "model", replace(CPU, num_experts_per_tok=CPU.n_routed_experts), seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--port", type=int, default=32500)
    parser.add_argument("--start-limit-s", type=float, default=240)
    options = parser.parse_args()
    options.work, options.out = options.work.absolute(), options.out.absolute()
    small = options.dry_run
    options.new_tokens, options.decode_tokens = (6, 8) if small else (32, 128)
    options.batches, options.lengths = ((1, 2), (300,)) if small else ((1, 4, 16), (4096, 16384, 65536))
    if small:
        gpu_engram_phases.LAST_TOKEN = 900  # of the small model's 1,024
    options.prompt_list = [make_prompt(1, 16), make_prompt(2, 700)] if small else equality_prompts(64)
    if small:
        build_small(options.work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit must not leave engines behind
    layouts = CPU_LAYOUTS if small else GPU_LAYOUTS
    results: dict[str, Any] = {}
    waves = sorted({layout.wave for layout in layouts})
    for wave in waves:
        run_wave(options, [item for item in layouts if item.wave == wave], results, wave == waves[-1])
    failed = [layout.name for layout in layouts if not is_equal(results.get(layout.name, {}))]
    if failed:
        sys.exit(
            f"every layout must answer as TP 1 does, got others from: {', '.join(failed)} ({options.out})"
        )


def is_equal(result: dict[str, Any]) -> bool:
    """Answered at all, and with the greedy tokens of TP 1 (which has nothing to be compared with)."""
    against = result.get("against_tp1", {"equal": 0, "prompts": 0})
    return "answers" in result and "error" not in result and against["equal"] == against["prompts"]


if __name__ == "__main__":
    main()

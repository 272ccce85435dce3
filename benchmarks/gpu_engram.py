"""Engram from disk against SGLang's own tables in GPU memory, on one machine, in one run.

    python benchmarks/gpu_engram.py build --work W        checkpoint with seeded weights, tables packed
    python benchmarks/gpu_engram.py disk  --work W --out O
    python benchmarks/gpu_engram.py rows  --work W --out O  rows and host nodes without an engine
    python benchmarks/gpu_engram.py serve --work W --out O  engines side by side on one GPU, asked in turn

`serve` starts each side's servers at once and sends every question to one after the other, A and B first in
turn, so both see the same machine. A phase that fails is recorded with its error and the others go on.
Every result is a raw JSON file under --out, with versions and command lines.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_engram_phases import PHASES, Pair, Server, generate, get, make_prompt
from gpu_repeatable import write_plugin  # beside this file, as the next


# ---- build -------------------------------------------------------------------------------------------------
def build(options: argparse.Namespace) -> None:
    """Idempotent: what is whole is kept."""
    from engram.checkpoint import open_checkpoint
    from engram.pack_table import NoProgress, PackRequest, pack_tables
    from sgl_ext.tiny_model.v41 import build_v41
    from sgl_ext.tiny_model.v41_sizes import H200

    size = replace(
        H200,
        hidden_size=4096,  # the wheel's mHC kernels without DeepGEMM take this width, not 1024
        moe_intermediate_size=options.expert_width,
        n_routed_experts=32,
        num_experts_per_tok=6,
        dspark_n_routed_experts=32,
        engram_vocab_size=options.engram_vocab_size,
        engram_layer_ids=tuple(options.engram_layers),
    )
    size = deepen(size, options.extra_layers)
    started = time.monotonic()
    model = options.work / "model"
    build_v41(model, size, seed=11, report=lambda line: print(line, flush=True))
    built = time.monotonic()
    checkpoint = open_checkpoint(model)
    for tp in options.pack_tp:
        pack_tables(
            PackRequest(
                checkpoint=checkpoint,
                directory=options.work / f"packed-tp{tp}",
                source_repo="bench/tiny-v41",
                tp=tp,
                ranks=tuple(range(tp)),
                layer_ids=tuple(table.layer_id for table in checkpoint.tables),
                allow_buffered=options.buffered,
            ),
            NoProgress(),
        )
    rows = [table.num_rows for table in checkpoint.tables]
    print(f"built {built - started:.1f} s, packed {time.monotonic() - built:.1f} s, rows {rows}", flush=True)


def deepen(size: Any, extra: int) -> Any:
    """`extra` more layers before the last KV source, so that an Engram layer has more to hide behind.

    From the last KV source on, SGLang replays a long prompt's tail, and asserts that no layer there has an
    Engram (deepseek_v4_replay_tail.py): the real model's second one lies before it too.
    """
    last = size.kv_source_layer_ids[-1]

    def shift(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(layer + extra if layer >= last else layer for layer in ids)

    ratios = size.compress_ratios
    size = replace(
        size,
        compress_ratios=(*ratios[:last], *(ratios[last - 1],) * extra, *ratios[last:]),
        kv_source_layer_ids=shift(size.kv_source_layer_ids),
        index_source_layer_ids=shift(size.index_source_layer_ids),
        candidate_source_layer_id=size.candidate_source_layer_id + extra,
        dspark_target_layer_ids=shift(size.dspark_target_layer_ids),
    )
    if max(size.engram_layer_ids) >= last + extra:
        raise SystemExit(
            f"--engram-layers must lie before the last KV source, layer {last + extra}, "
            f"got {list(size.engram_layer_ids)}; put more layers before it with --extra-layers"
        )
    return size


# ---- disk --------------------------------------------------------------------------------------------------
def disk(options: argparse.Namespace) -> None:
    """4 KiB random reads at several depths: threads with O_DIRECT, and the row store's own io_uring."""
    program = options.work / "randread"
    source = Path(__file__).with_name("randread.cpp")
    subprocess.run(["g++", "-O2", "-std=c++20", "-pthread", "-o", program, source], check=True)
    table = sorted((options.work / "packed-tp1").glob("*.engram"))[0]
    results = []
    for depth in (1, 24, 48, 128):
        done = subprocess.run([program, table, str(depth), "2"], capture_output=True, text=True)
        results.append(
            json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr, "depth": depth}
        )
        print(results[-1], flush=True)
    record(
        options.out,
        "disk",
        {"threads": results, "row_store": [store_reads(options, depth) for depth in (48, 128)]},
    )


def store_reads(options: argparse.Namespace, depth: int) -> dict[str, Any]:
    import numpy as np

    from engram.row_source import RowPlanes
    from engram.row_store import open_row_store

    files = sorted((options.work / "packed-tp1").glob("*.engram"))
    with open_row_store(files, queue_depth=depth, allow_buffered=options.buffered) as store:
        rows = store.headers[0].total_rows
        ids = np.random.default_rng(depth).integers(0, rows, 200_000)
        out = RowPlanes(weight=np.empty((len(ids), 256), np.uint8), scale=np.empty((len(ids), 8), np.uint8))
        start = time.monotonic()
        store.submit(store.layer_ids[0], ids, out).wait()
        seconds = time.monotonic() - start
        counters = store.counters()
    result = {
        "depth": depth,
        "seconds": seconds,
        "pages": counters.pages,
        "reads": counters.reads,
        "pages_per_s": counters.pages / seconds,
        "read_p50_us": counters.read_latency.quantile_s(0.5) * 1e6,
        "read_p99_us": counters.read_latency.quantile_s(0.99) * 1e6,
    }
    print(result, flush=True)
    return result


# ---- serve -------------------------------------------------------------------------------------------------
def make_server(options: argparse.Namespace, side: str, spec: str, graph: str, port: int) -> Server:
    command = [
        sys.executable,
        *("-m", "sglang.launch_server"),
        *("--model-path", str(options.work / "model"), "--host", "127.0.0.1", "--port", str(port)),
        *("--tp-size", str(options.tp), "--moe-runner-backend", "marlin", "--fp8-gemm-backend", "triton"),
        *("--mem-fraction-static", str(options.mem_fraction), "--max-total-tokens", "147456"),
        *("--max-running-requests", "16"),
        *("--chunked-prefill-size", str(options.chunked_prefill_size), "--random-seed", "1"),
        *("--cuda-graph-max-bs-decode", "16"),
        *("--cuda-graph-backend-decode", graph, "--watchdog-timeout", "1800", "--skip-server-warmup"),
        *("--cuda-graph-backend-prefill", "breakable" if graph == "breakable" else "disabled"),
        *("--enable-metrics", "--disable-flashinfer-autotune", "--min-free-slots-delay", "1"),
        *options.server_arg,
    ]
    if graph == "breakable":
        command += ["--cuda-graph-max-bs-prefill", "512"]
    if spec == "dspark":
        command += ["--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", "5"]
    environment = dict(os.environ)
    if options.tp > 1:
        # NCCL alone, as between Sparks: the rivals are compiled for minutes first, and some of their forms
        # use NVLink multicast, which not every host grants.
        command += ["--enforce-disable-flashinfer-allreduce-fusion", "--disable-custom-all-reduce"]
        environment["NCCL_NVLS_ENABLE"] = "0"
        # Several engines starting at once leave the GPUs with unequal free memory, which SGLang refuses.
        environment["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"
    stock = side in ("stock", "control")
    plugins = [] if stock else ["sgl_ext"]
    # The plugin has a hook of its own for the experts' order, and refuses another around the same function.
    if options.repeatable and side == "stock":
        folder = write_plugin(options.out / "plugin")
        environment["PYTHONPATH"] = f"{folder}:{environment.get('PYTHONPATH', '')}"
        environment["GPU_REPEATABLE"] = options.repeatable
        environment["GPU_REPEATABLE_LOG"] = str(options.out / f"hashes-{side}-{spec}-{graph}")
        plugins.append("gpu_repeatable")
    environment["SGLANG_PLUGINS"] = ",".join(plugins) or "none"
    report = options.out / f"report-{side}-{spec}-{graph}"
    if not stock:
        report.mkdir(parents=True, exist_ok=True)
        environment |= {
            "SPARKCTL_ENGRAM_DIR": str(options.work / f"packed-tp{options.tp}"),
            "SPARKCTL_REPORT_DIR": str(report),
            "SPARKCTL_ENGRAM_CACHE_GIB": "6",
            "SPARKCTL_ENGRAM_LOOKAHEAD_GIB": "1",
            "SPARKCTL_ENGRAM_LOOKAHEAD_DEPTH": "128",
            "SPARKCTL_ENGRAM_BUFFERED": "1" if options.buffered else "0",
        } | dict(item.split("=", 1) for item in options.ours_env)
        if side.startswith("ram"):  # every row in memory; ram8: with eight threads
            environment["SPARKCTL_ENGRAM_BACKEND"] = "ram"
            environment["SPARKCTL_ENGRAM_READ_THREADS"] = side.removeprefix("ram") or "4"
    log = options.out / f"log-{side}-{spec}-{graph}.txt"
    return Server(
        side=side, spec=spec, graph=graph, port=port, command=command, environment=environment, log=log
    )


def start(server: Server) -> None:
    server.started = time.monotonic()
    with server.log.open("wb") as log:
        server.process = subprocess.Popen(
            server.command,
            env=server.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def await_ready(server: Server, limit_s: float) -> None:
    assert server.process is not None
    while time.monotonic() - server.started < limit_s:
        if server.process.poll() is not None:
            server.error = f"exit {server.process.returncode}"
            return
        try:
            get(server, "/model_info", timeout_s=2)
        except OSError:
            time.sleep(0.5)
            continue
        server.ready_s = time.monotonic() - server.started
        return
    server.error = f"not up after {limit_s} s"


def stop(server: Server) -> None:
    if server.process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def serve(options: argparse.Namespace) -> None:
    servers = []
    for number, (graph, spec, side) in enumerate(
        (graph, spec, side) for graph in options.graph for spec in options.spec for side in ("stock", "ours")
    ):
        servers.append(make_server(options, side, spec, graph, 31000 + 37 * number))
    result: dict[str, Any] = {"phases": {}, "servers": {}}
    try:
        for server in servers:
            start(server)
            time.sleep(options.stagger_s)
        for server in servers:
            await_ready(server, options.start_limit_s)
            print(
                server.name, f"ready {server.ready_s:.1f} s" if not server.error else server.error, flush=True
            )
        first_words(servers, options)
        for server in servers:
            result["servers"][server.name] = describe(server)
        record(options.out, options.label, result)
        for phase in options.phases:
            for left, right in zip(servers[::2], servers[1::2], strict=True):
                key = f"{phase}-{left.spec}-{left.graph}"
                result["phases"][key] = run_phase(phase, (left, right), options)
                record(options.out, options.label, result)
    finally:
        for server in servers:
            stop(server)
        record(options.out, options.label, result)


def first_words(servers: list[Server], options: argparse.Namespace) -> None:
    """The first forward compiles for minutes on a fresh machine: all servers at once, shapes of all sizes."""

    def ask(server: Server) -> None:
        if server.error:
            return
        begin = time.monotonic()
        try:
            for prompt in (make_prompt(1, 16), make_prompt(2, 300), make_prompt(3, 9000)):
                server.facts["first_reply"] = generate(server, [prompt], 8, timeout_s=options.first_limit_s)[
                    0
                ]["output_ids"]
            server.facts["first_words_s"] = time.monotonic() - begin
            generate(
                server, [make_prompt(10 + idx, 64) for idx in range(16)], 8, timeout_s=options.first_limit_s
            )
        except Exception as error:  # noqa: BLE001, recorded: the other servers go on
            server.error = f"first words: {error!r}"
        print(server.name, server.facts, server.error, f"{time.monotonic() - begin:.1f} s", flush=True)

    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(ask, servers))


def run_phase(name: str, pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    if any(server.error for server in pair):
        return {"error": [server.error for server in pair]}
    begin = time.monotonic()
    try:
        result = PHASES[name](pair, options)
    except Exception:  # noqa: BLE001, recorded: the other phases go on
        result = {"error": traceback.format_exc()}
    result["phase_s"] = time.monotonic() - begin
    short = {
        key: value
        for key, value in result.items()
        if key in ("equal", "stock_repeats", "equal_where_stock_repeats", "prompts", "error", "phase_s")
    }
    print(name, pair[0].spec, pair[0].graph, json.dumps(short)[:1500], flush=True)
    return result


def describe(server: Server) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "command": server.command,
        "ready_s": server.ready_s,
        "error": server.error,
    } | server.facts
    facts["environment"] = {
        key: value
        for key, value in server.environment.items()
        if key.startswith(("SPARKCTL", "SGLANG", "CUDA_VIS", "GPU_REP", "NCCL"))
    }
    text = server.log.read_text(errors="replace")
    facts["memory_lines"] = [
        line for line in text.splitlines() if "mem usage" in line or "avail mem" in line
    ][:12]
    return facts


def record(out: Path, label: str, result: dict[str, Any]) -> None:
    """Written after every phase, so that a cut-off run leaves what it had."""
    versions: dict[str, str | None] = {}
    for name in ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    content = {
        "command": sys.argv,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "versions": versions,
        "gpu": subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.used", "--format=csv,noheader"],
            capture_output=True,
            text=True,
        ).stdout.split("\n"),
    } | result
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / f".{label}.part"
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(out / f"{label}.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--label", default="serve")
    parser.add_argument("--engram-vocab-size", type=int, default=850_000, help="24 rows a layer for each")
    parser.add_argument("--engram-layers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--extra-layers", type=int, default=0, help="before the last KV source, see deepen()")
    parser.add_argument("--expert-width", type=int, default=256, help="three ranks need a multiple of 96")
    parser.add_argument("--pack-tp", type=int, nargs="+", default=[1])
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--buffered", action="store_true", help="the disk has no O_DIRECT")
    parser.add_argument("--graph", nargs="+", default=["full"], choices=("full", "breakable", "disabled"))
    parser.add_argument("--spec", nargs="+", default=["plain", "dspark"], choices=("plain", "dspark"))
    parser.add_argument("--phases", nargs="*", default=list(PHASES))
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--decode-tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--stagger-s", type=float, default=0.0)
    # A fresh machine compiled kernels for over ten minutes before it was up.
    parser.add_argument("--start-limit-s", type=float, default=1500)
    parser.add_argument("--first-limit-s", type=float, default=1500)
    parser.add_argument("--chunked-prefill-size", type=int, default=8192)
    parser.add_argument("--ours-env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--server-arg", action="append", default=[])
    parser.add_argument("--mem-fraction", type=float, default=0.7)
    parser.add_argument(
        "--repeatable",
        default="",
        help="what gpu_repeatable.py puts in order in stock; the plugin does it by itself",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("build", "disk", "rows", "serve"))
    add_arguments(parser)
    options = parser.parse_args()
    options.work, options.out = options.work.absolute(), options.out.absolute()
    if options.what == "rows":
        from gpu_engram_rows import rows  # beside this file

        rows(options, record)
    else:
        {"build": build, "disk": disk, "serve": serve}[options.what](options)


if __name__ == "__main__":
    main()

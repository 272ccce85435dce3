"""Speculation decided for each step, against none and against always, on one GPU, engines side by side.

    python benchmarks/gpu_spec.py --work W --out O --gpu 0 --draft random     hardly ever right
    python benchmarks/gpu_spec.py --work W --out O --gpu 1 --draft agreeing   made to agree with the target
    python benchmarks/gpu_spec.py --work W --out O --draft random --dry-run   on a CPU: a small model

First the model (built where it is missing), then five engines: plain (no speculation), always (SGLang's
DSPARK, block 5), and three that the plugin decides, still without a cost table: compact verify, fine (which
is compact with graphs of one row a request) and static. `tune` measures a table on each of these in turn, as
long as there is time for all the rest, and they are started again with it (auto-compact, auto-fine,
auto-static); one without a table goes on as it is, for equality and sampling. Parts:

  tune      the cost tables
  timing    tokens/s at batch 1, 4, 16: all engines asked in turn, the order turned round each time
  equality  greedy replies to 78 prompts (prefix hits, chunks, aborts, mixed wishes) against one at a time
  sampling  sampled replies against plain's: chi-square over the tokens of each place

O/spec-DRAFT.json (raw) is written after every part and has a part's error where it failed; a part that is
out of time is skipped by name. Exit status: 0 when every part ran and no bar was missed, else 1.
"""

import argparse
import functools
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # siblings, and sgl_ext

import gpu_engram_phases  # noqa: E402, beside this file, as the next
from gpu_engram import await_ready, start, stop  # noqa: E402
from gpu_engram_phases import Server, generate, make_prompt  # noqa: E402
from gpu_spec_plugin import write_plugin  # noqa: E402
from spec_parts import Limits, find_missed, run_equality, run_sampling, run_timing  # noqa: E402

BLOCK = 5
# Engines of one kind are up some seconds apart; one that is so much later is stuck, and the others go on.
STRAGGLER_S = 60.0
# What the parts after `tune` take, starts included, measured by none yet: tune leaves so much.
AFTER_TUNE_S = 220.0
# Dominated by the last token (build_agreeing_v41's arguments).
GAINS = {"embed_gain": 1024.0, "markov_gain": 512.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """verify: SGLang's ragged verify mode, where the plugin decides; None: SGLang alone. plain_graphs: the
    plugin's own graphs for steps without a draft."""

    name: str
    drafts: bool = True
    verify: str | None = None
    tuned: bool = False
    plain_graphs: bool = False


FIRST = (
    Side(name="plain", drafts=False),
    Side(name="always"),
    Side(name="compact", verify="compact"),
    Side(name="fine", verify="compact", plain_graphs=True),
    Side(name="static", verify="static"),
)
DECIDED = tuple(side.name for side in FIRST if side.verify)
SECOND = tuple(replace(side, name=f"auto-{side.name}", tuned=True) for side in FIRST if side.verify)


# ---- model -------------------------------------------------------------------------------------------------
def build_model(options: argparse.Namespace) -> Path:
    """Idempotent. Small Engram tables: their speed is not looked at here."""
    from sgl_ext.tiny_model.agreeing_draft import build_agreeing_v41
    from sgl_ext.tiny_model.v41 import build_v41
    from sgl_ext.tiny_model.v41_sizes import CPU, H200

    if options.dry_run:
        size = replace(
            CPU,
            num_experts_per_tok=CPU.n_routed_experts,
            dspark_num_experts_per_tok=CPU.dspark_n_routed_experts,
            dspark_markov_rank=64,
        )
    else:
        size = replace(
            H200,
            hidden_size=4096,  # the wheel's mHC kernels without DeepGEMM take this width, not 1024
            n_routed_experts=32,
            num_experts_per_tok=6,
            dspark_n_routed_experts=32,
            engram_vocab_size=20_000,
        )
    model = options.work / f"spec-{options.draft}-{'cpu' if options.dry_run else 'gpu'}"
    build = functools.partial(build_agreeing_v41, **GAINS) if options.draft == "agreeing" else build_v41
    build(model, size, seed=11, report=lambda line: print(line, flush=True))
    return model


# ---- engines -----------------------------------------------------------------------------------------------
def make_server(options: argparse.Namespace, side: Side, port: int) -> Server:
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(options.model),
        "--served-model-name", "narrow", "--host", "127.0.0.1", "--port", str(port), "--skip-server-warmup",
        "--random-seed", "1", "--max-running-requests", "16", "--chunked-prefill-size", str(options.chunk),
        "--cuda-graph-backend-prefill", "disabled",
        "--enable-metrics",  # all sides: what it costs is none of the plugin's
    ]  # fmt: skip
    folder = options.out / f"{options.draft}-{side.name}"
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(options.plugin), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
        ),
        "SGLANG_PLUGINS": "gpu_spec_plugin,sgl_ext",
        "SPARKCTL_REPORT_DIR": str(folder),
    }
    if side.drafts:
        command += ["--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", str(BLOCK)]
    if side.verify:
        variables |= {"SPARKCTL_SPEC": "1", "SGLANG_RAGGED_VERIFY_MODE": side.verify}
    if side.plain_graphs:
        variables["SPARKCTL_SPEC_PLAIN_GRAPHS"] = "1"
    if side.tuned:
        variables["SPARKCTL_SPEC_TABLE"] = str(table_path(options, side.name))
    if options.dry_run:
        command += [
            "--device", "cpu", "--dtype", "float32", "--max-total-tokens", "8192", "--context-length", "4096",
            "--sampling-backend", "pytorch", "--cuda-graph-backend-decode", "disabled",
            "--mem-fraction-static", "0.8", "--grammar-backend", "none",
        ]  # fmt: skip
        variables |= {
            "SGLANG_USE_CPU_ENGINE": "1", "SPARKCTL_FORK_CHILDREN": "1", "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": str(port // 61 % 2),
        }  # fmt: skip
    else:
        command += [
            "--mem-fraction-static", str(options.mem_fraction), "--max-total-tokens", "147456",
            "--moe-runner-backend", "marlin", "--fp8-gemm-backend", "triton",
            "--cuda-graph-backend-decode", "full", "--cuda-graph-max-bs-decode", "16",
            "--watchdog-timeout", "1800", "--disable-flashinfer-autotune", "--min-free-slots-delay", "1",
        ]  # fmt: skip
        variables |= {
            "CUDA_VISIBLE_DEVICES": str(options.gpu), "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
            "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0", "GPU_SPEC_EXPERTS": "marlin",
        }  # fmt: skip
    return Server(
        side=side.name, spec=side.verify or "", graph="", port=port, command=command, environment=variables,
        log=options.out / f"{options.draft}-{side.name}.log",
    )  # fmt: skip


def table_path(options: argparse.Namespace, name: str) -> Path:
    return options.out / f"{options.draft}-table-{name.removeprefix('auto-')}.json"


class Session:
    """The engines and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.started = time.monotonic()
        self.servers: dict[str, Server] = {}
        self.result: dict[str, Any] = {"draft": options.draft, "dry_run": options.dry_run, "parts": {}}

    @property
    def left_s(self) -> float:
        return self.options.limit_s - (time.monotonic() - self.started)

    def launch(self, sides: tuple[Side, ...]) -> None:
        """Starts all at once; await_all waits for them."""
        for side in sides:
            server = make_server(self.options, side, self.options.port + 61 * len(self.servers))
            self.servers[side.name] = server
            start(server)

    def await_all(self, sides: tuple[Side, ...]) -> None:
        """Until each is up, for most of the time that is left; what is not up by then is stopped."""
        end = time.monotonic() + min(self.options.start_limit_s, 0.7 * self.left_s)
        for side in sides:
            server = self.servers[side.name]
            # From its own start, and once at least: it may have come up while another was waited for.
            await_ready(server, max(end, time.monotonic() + 1) - server.started)
            if server.error:
                stop(server)
            else:
                end = min(end, time.monotonic() + STRAGGLER_S * self.options.patience)
            print(side.name, server.error or f"ready after {server.ready_s:.1f} s", flush=True)
        with ThreadPoolExecutor(len(sides)) as pool:
            list(pool.map(self._first_reply, [self.servers[side.name] for side in sides]))
        self.save()

    def _first_reply(self, server: Server) -> None:
        """Compiles on a fresh machine, for minutes: all engines at once."""
        if server.error:
            return
        begin = time.monotonic()
        try:
            limit_s = max(1.0, self.left_s)
            for prompt in (make_prompt(1, 16), make_prompt(2, 300), make_prompt(3, self.options.long)):
                generate(server, [prompt], 8, timeout_s=limit_s)
            generate(server, [make_prompt(10 + idx, 64) for idx in range(16)], 8, timeout_s=limit_s)
        except Exception as error:  # noqa: BLE001, recorded: the other engines go on
            server.error = f"first reply: {error!r}"
        server.facts["first_reply_s"] = time.monotonic() - begin
        print(server.side, server.error, f"first replies {server.facts['first_reply_s']:.1f} s", flush=True)

    def running(self) -> dict[str, Server]:
        return {name: server for name, server in self.servers.items() if not server.error}

    def part(self, name: str, limit_s: float, run: Callable[[Limits], dict[str, Any]]) -> None:
        allowed = min(limit_s * self.options.patience, self.left_s)
        begin = time.monotonic()
        if allowed < 5:
            found: dict[str, Any] = {"skipped": f"{self.left_s:.0f} s were left of --limit-s"}
        else:
            try:
                found = run(Limits(end=begin + allowed))
            except Exception:  # noqa: BLE001, recorded: the other parts go on
                found = {"error": traceback.format_exc()}
        self.result["parts"][name] = found | {"part_s": time.monotonic() - begin}
        keys = ("skipped", "error", "summary")
        print("PART", name, json.dumps({key: found[key] for key in keys if key in found})[:4000], flush=True)
        self.save()

    def save(self) -> None:
        """After every part, so that a run that is cut off leaves what it had."""
        content = describe_machine() | self.result
        content["servers"] = {name: describe(server) for name, server in self.servers.items()}
        path = self.options.out / f"spec-{self.options.draft}.json"
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(path)


def describe_machine() -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for name in ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.used", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")
    except FileNotFoundError:
        gpus = []
    return {
        "command": sys.argv, "python": platform.python_version(), "kernel": platform.release(),
        "cpus": os.cpu_count(), "versions": versions, "gpus": gpus,
    }  # fmt: skip


def describe(server: Server) -> dict[str, Any]:
    kept = ("SPARKCTL", "SGLANG", "CUDA_VIS", "GPU_SPEC")
    facts = {"command": server.command, "ready_s": server.ready_s, "error": server.error} | server.facts
    facts["environment"] = {
        name: value for name, value in server.environment.items() if name.startswith(kept)
    }
    if server.error and server.log.is_file():
        facts["log_end"] = server.log.read_text(errors="replace").splitlines()[-60:]
    return facts


# ---- parts -------------------------------------------------------------------------------------------------
def tune_side(session: Session, name: str) -> dict[str, Any]:
    from sgl_ext.speculation.cost_table_file import write_cost_table
    from sgl_ext.speculation.tune import read_report, tune

    options, server = session.options, session.servers[name]
    report = read_report(options.out / f"{options.draft}-{name}" / "rank-00.json")
    engine, table, samples = tune(
        f"http://127.0.0.1:{server.port}",
        report | {"graph_batches": options.batches},  # those that are timed afterwards
        max_batch=options.batches[-1],
        context_tokens=options.context,
        rounds=options.tune_rounds,
        allow_busy=True,  # there is one run and no second
    )
    digest = write_cost_table(table_path(options, name), engine, table, samples)
    return {
        "hash": digest, "batches": table.batches, "verify_ns": table.verify_ns, "draft_ns": table.draft_ns,
        "samples": samples,
    }  # fmt: skip


def run_tune(session: Session, limits: Limits) -> dict[str, Any]:
    """One engine after the other: two at once would measure each other. What fails is named."""
    found: dict[str, Any] = {}
    for name in session.options.verify:
        table_path(session.options, name).unlink(missing_ok=True)  # of an earlier run
        if session.servers[name].error:
            continue
        if limits.is_over:
            found[name] = {"error": "out of time"}
            continue
        try:
            found[name] = tune_side(session, name)
        except Exception:  # noqa: BLE001, recorded
            found[name] = {"error": traceback.format_exc()}
        print(name, json.dumps(found[name])[:1500], flush=True)
    return found


def run_all(session: Session) -> None:
    options = session.options
    first = tuple(side for side in FIRST if not side.verify or side.name in options.verify)
    session.launch(first)
    session.await_all(first)
    tune_s = min(150.0, max(20.0, session.left_s / options.patience - AFTER_TUNE_S))
    session.part("tune", tune_s, lambda limits: run_tune(session, limits))
    second = tuple(side for side in SECOND if table_path(options, side.name).is_file())
    for side in second:  # these replace those that were tuned
        tuned = session.servers[side.name.removeprefix("auto-")]
        stop(tuned)
        tuned.error = "stopped after tune"
    if second:
        session.launch(second)
        session.await_all(second)
    session.part("timing", 150, lambda limits: run_timing(session.running(), options, limits))
    session.part("equality", 150, lambda limits: run_equality(session.running(), options, limits))
    session.part("sampling", 100, lambda limits: run_sampling(session.running(), options, limits))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draft", choices=("random", "agreeing"), required=True)
    parser.add_argument("--gpu", default="0", help="CUDA device of all engines")
    parser.add_argument("--port", type=int, help="first port; by default one for each GPU and draft")
    parser.add_argument("--verify", nargs="+", choices=DECIDED, default=list(DECIDED))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--limit-s", type=float, default=570, help="parts that would begin later are skipped")
    parser.add_argument("--start-limit-s", type=float, default=400)
    parser.add_argument("--mem-fraction", type=float, default=0.7)
    options = parser.parse_args()
    options.work, options.out = options.work.absolute(), options.out.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    set_sizes(options)
    options.model = build_model(options)
    options.plugin = write_plugin(options.out / f"plugin-{options.draft}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit must not leave engines behind
    session = Session(options)
    try:
        run_all(session)
    finally:
        for server in session.servers.values():
            stop(server)
        session.result["missed"] = find_missed(session.result["parts"], options.draft, options.verify)
        session.save()
    print("MISSED", json.dumps(session.result["missed"]), flush=True)
    return 1 if session.result["missed"] else 0


def set_sizes(options: argparse.Namespace) -> None:
    """What both modes ask for; a dry run shows that the script works, not how fast anything is."""
    small = options.dry_run
    if small:
        gpu_engram_phases.LAST_TOKEN = 900  # of the small model's 1,024
    options.port = options.port or 33000 + 1000 * (options.draft == "agreeing") + 2000 * int(options.gpu)
    options.chunk, options.long = (256, 600) if small else (2048, 5000)
    options.batches = (1, 2) if small else (1, 4, 16)
    options.decode_tokens, options.rounds = (24, 2) if small else (192, 5)
    options.context, options.tune_rounds = (32, 2) if small else (256, 2)
    options.samples, options.sample_batch = (64, 4) if small else (3200, 16)
    options.length_scale = 1 if small else 6
    options.patience = 5 if small else 1  # a busy machine's cores are slow


if __name__ == "__main__":
    raise SystemExit(main())

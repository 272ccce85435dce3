"""The CPU engine's own start, without the launcher: `python -m benchmarks.engine_start MODEL OUT`.

Variants alternate within each round, so that a slow minute of the machine meets all of them. A round
starts the nodes of one cluster as processes of this machine, waits for one generated token, reads how much
CPU time each process took up to then, and kills them all. OUT/raw.json keeps every round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

BASE = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "GLOO_SOCKET_IFNAME": "lo",
    "SGLANG_HOST_IP": "127.0.0.1",
}
FLAGS = (
    "--dtype float32 --max-total-tokens 8192 --mem-fraction-static 0.3 --attention-backend torch_native "
    "--sampling-backend pytorch --grammar-backend none --device cpu"
)
FORK = {"SPARKCTL_FORK_CHILDREN": "1"}
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
COLD = "a new directory"  # a home without compiled kernels in its cache, as on a fresh machine
SKIP = ["--skip-server-warmup"]
VARIANTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "spawn": ({}, []),
    "spawn-skip-warmup": ({}, SKIP),
    "fork": (FORK, []),
    "fork-skip-warmup": (FORK, SKIP),
    "fork-eager": ({**FORK, **EAGER}, []),
    "fork-cold": ({**FORK, "HOME": COLD}, []),
    "fork-cold-eager": ({**FORK, **EAGER, "HOME": COLD}, []),
}
LIMIT_S = 150.0


def start_nodes(
    model: Path, nodes: int, port: int, variant: str, logs: Path
) -> list[subprocess.Popen[bytes]]:
    extra_environment, extra_flags = VARIANTS[variant]
    if extra_environment.get("HOME") == COLD:
        extra_environment = {**extra_environment, "HOME": tempfile.mkdtemp(dir=logs)}
    started = []
    for rank in range(nodes):
        words = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        words += ["--host", "127.0.0.1", "--port", str(port + rank), *FLAGS.split(), *extra_flags]
        if nodes > 1:
            words += ["--tp", str(nodes), "--nnodes", str(nodes), "--node-rank", str(rank)]
            words += ["--dist-init-addr", f"127.0.0.1:{port + nodes}"]
        with (logs / f"{variant}-rank-{rank}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    words,
                    env={**os.environ, **BASE, **extra_environment},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    return started


def wait_for_token(port: int, processes: list[subprocess.Popen[bytes]]) -> None:
    body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).encode()
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if any(process.poll() is not None for process in processes):
            raise RuntimeError(f"a node ended: {[process.returncode for process in processes]}")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"}
        )
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
            if json.load(answer)["meta_info"]["completion_tokens"] == 1:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no token within {LIMIT_S} s")


def read_cpu_s(sessions: set[int]) -> dict[str, float]:
    """CPU seconds so far of every process of the sessions, by `name-pid`."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            fields = rest.split()
            if int(fields[3]) in sessions:
                found[f"{name.partition('(')[2]}-{path.parent.name}"] = (
                    int(fields[11]) + int(fields[12])
                ) / ticks
    return found


def measure(model: Path, nodes: int, port: int, variant: str, logs: Path) -> dict[str, object]:
    began_s = time.monotonic()
    processes = start_nodes(model, nodes, port, variant, logs)
    try:
        wait_for_token(port, processes)
        first_token_s = time.monotonic() - began_s
        cpu_s = read_cpu_s({process.pid for process in processes})
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {
        "variant": variant,
        "first_token_s": round(first_token_s, 2),
        "cpu_total_s": round(sum(cpu_s.values()), 2),
        "cpu_s": cpu_s,
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--port", type=int, default=31400)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    arguments = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="engine-start-") as logs:
        for index in range(arguments.rounds * len(arguments.variants)):
            variant = arguments.variants[index % len(arguments.variants)]
            port = arguments.port + 10 * index
            rounds.append(measure(arguments.model, arguments.nodes, port, variant, Path(logs)))
            print(json.dumps({key: value for key, value in rounds[-1].items() if key != "cpu_s"}), flush=True)
    summary = {
        variant: {
            key: statistics.median(float(str(r[key])) for r in rounds if r["variant"] == variant)
            for key in ("first_token_s", "cpu_total_s")
        }
        for variant in arguments.variants
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "sglang": version("sglang")}
    document = {"machine": machine, "nodes": arguments.nodes, "summary": summary, "rounds": rounds}
    (arguments.out / "raw.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Measure the launch of a cluster on this machine: `python -m benchmarks.launch [--nodes 3] [--rounds 3]
[--output DIR]`.

Each round, in a fresh state directory: `plan`, `up` to the first generated token, a SIGKILLed rank under
`up --follow`, and `down`. The launcher's own time is the wall time of `up` minus what its record says it
waited for the engine. Writes raw.json with every round, and summary.json with medians and the bars.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

SPARKCTL = [sys.executable, "-m", "launcher"]
BARS = {
    "first_token_s": 45.0,
    "launcher_own_s": 3.0,
    "plan_s": 0.5,
    "down_s": 6.0,
    "kill_reported_s": 2.0,
    "kill_down_s": 3.0,
    "launcher_peak_mib": 120.0,
}
KILLED_RANK = 1
RECIPE = "local"  # tiny Qwen3: what is measured is the launcher, and earlier results are of this model


def run(
    environment: dict[str, str], *words: str, timeout_s: float = 240
) -> tuple[float, subprocess.CompletedProcess[str]]:
    started = time.monotonic()
    done = subprocess.run(
        [*SPARKCTL, *words], env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    return time.monotonic() - started, done


def measure_round(nodes: int, port: int) -> dict[str, Any]:
    """One round; raises when any command fails, with what it said."""
    with tempfile.TemporaryDirectory(prefix="sparkctl-launch-") as state:
        environment = {**os.environ, "XDG_STATE_HOME": state}
        figures: dict[str, Any] = {}
        words = ("--recipe", RECIPE, "--nodes", str(nodes), "--port", str(port))
        figures["plan_s"], done = run(environment, "plan", *words)
        _check(done)
        wall_s, done = run(environment, "up", *words, "--json")
        _check(done)
        ready = json.loads(done.stdout)
        engine_s = ready["timings_s"]["engine_s"]
        # The chat request after the first token is the cluster's time, not the launcher's.
        figures["first_token_s"] = wall_s - ready["chat"]["elapsed_s"]
        figures["launcher_own_s"] = figures["first_token_s"] - engine_s
        figures["up"] = ready
        figures["status_s"], done = run(environment, "status", "--json")
        _check(done)
        figures["down_s"], done = run(environment, "down", "--json")
        _check(done)
        figures["down"] = json.loads(done.stdout)
        figures.update(measure_kill(environment, nodes, port))
        figures["launcher_peak_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        return figures


def measure_kill(environment: dict[str, str], nodes: int, port: int) -> dict[str, Any]:
    """SIGKILL one rank's scheduler under `up --follow`:
    seconds to the message, and until no process is left.
    """
    words = [*SPARKCTL, "up", "--recipe", RECIPE, "--nodes", str(nodes), "--port", str(port), "--follow"]
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as following:
        assert following.stdout is not None
        run_id = ""
        for line in following.stdout:
            run_id = (re.search(r"\b(\d{8}-\d{6}-[0-9a-f]{4})\b", line) or [run_id])[0]
            if "following" in line:
                break
        else:
            raise RuntimeError("up --follow ended before it followed")
        lines: list[tuple[float, str]] = []
        reader = threading.Thread(
            target=lambda: lines.extend((time.monotonic(), line) for line in following.stdout or ())
        )
        victim = scheduler_pid(run_id, min(KILLED_RANK, nodes - 1))
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        reader.start()
        while run_pids(run_id) and time.monotonic() - killed_at < 60:
            time.sleep(0.02)
        down_s = time.monotonic() - killed_at
        following.wait(timeout=60)
        exit_s = time.monotonic() - killed_at
        reader.join()
    told = [at - killed_at for at, line in lines if line.startswith("error:")]
    if not told:
        raise RuntimeError(
            "up --follow did not report the killed rank:\n" + "".join(line for _, line in lines)
        )
    return {
        "kill_reported_s": told[0],
        "kill_down_s": down_s,
        "kill_exit_s": exit_s,
        "kill_exit_status": following.returncode,
        "kill_message": "".join(line for _, line in lines),
    }


def run_pids(run_id: str) -> list[int]:
    """Living processes whose environment or session belongs to the run; read here, not by sparkctl."""
    needle = f"SPARKCTL_RUN_ID={run_id}".encode()
    sessions, found = set(), []
    processes = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            carries = needle in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        processes[int(entry.name)] = (stat[0], int(stat[3]), carries)
        if carries:
            sessions.add(int(stat[3]))
    for pid, (state, session, carries) in processes.items():
        if state not in "ZX" and (carries or session in sessions):
            found.append(pid)
    return found


def scheduler_pid(run_id: str, rank: int) -> int:
    for pid in run_pids(run_id):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        if title.startswith("sglang::scheduler") and (f"TP{rank}" in title or rank == 0):
            return pid
    raise RuntimeError(f"no scheduler of rank {rank} in run {run_id}")


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, done.args))} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )


def without_paths(text: str) -> str:
    """The places of this machine, taken out of what goes into results/."""
    for place, name in ((sys.prefix, "VENV"), (str(Path.cwd()), "CHECKOUT"), (str(Path.home()), "~")):
        text = text.replace(place, name)
    return re.sub(r"/tmp/sparkctl-launch-\w+", "STATE", text)


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    rows = {}
    for name, bar in BARS.items():
        values = [round_[name] for round_ in rounds]
        median = statistics.median(values)
        rows[name] = {
            "median": round(median, 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
            "bar": bar,
            "reached": median <= bar,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rounds = []
    for number in range(arguments.rounds):
        rounds.append(measure_round(arguments.nodes, arguments.port))
        print(
            f"round {number + 1}: " + ", ".join(f"{name} {rounds[-1][name]:.2f}" for name in BARS), flush=True
        )
    machine = {
        "cores": os.cpu_count(),
        "cpu": next(
            (
                line.split(":")[1].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if "model name" in line
            ),
            "?",
        ),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sglang": version("sglang"),
        "torch": version("torch"),
        "sparkctl": version("sparkctl"),
        "load_average_at_end": os.getloadavg(),
    }
    command = "python -m benchmarks.launch " + " ".join(sys.argv[1:])
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "raw.json").write_text(
        without_paths(json.dumps({"command": command, "machine": machine, "rounds": rounds}, indent=1)) + "\n"
    )
    summary = {"command": command, "machine": machine, "figures": summarise(rounds)}
    (arguments.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary["figures"], indent=1))


if __name__ == "__main__":
    main()

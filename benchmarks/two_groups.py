"""Two groups of CPU nodes behind the real sglang-router, started, asked, and one of them killed; raw JSON.

    python benchmarks/two_groups.py --out O

The shape of v41-flash-8x on one machine: 2 groups of 2 nodes (TP 2 each, tiny Qwen3, SGLang on the CPU). Only
commands that a user types: `sparkctl plan`, `up --plan`, `status`, `logs`, `down`. The environment that runs
this has sglang-router.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

RECIPE = """schema_version: 1
name: two-groups
description: Two groups of two nodes on this machine behind sglang-router, CPU engine, tiny Qwen3
extends: local
parallelism: {nodes: 4, groups: 2, tp: 2}
router: {policy: round_robin, health_interval_s: 1}
evidence: {status: not_run, notes: of benchmarks/two_groups.py}
"""
_LEFT_LIMIT_S = 60


def sparkctl(*words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words], capture_output=True, text=True, timeout=900
    )
    if done.returncode != status:
        sys.exit(
            f"sparkctl {shlex.join(words)} must end with {status}, got {done.returncode}:\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def complete(port: int, served_name: str, seed: int) -> dict[str, Any]:
    body = {"model": served_name, "prompt": f"request {seed}", "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as reply:
        text = json.loads(reply.read())["choices"][0]["text"]
    return {"seed": seed, "text": text, "seconds": round(time.monotonic() - begin, 3)}


def answered(run_id: str) -> int:
    """Requests that the group's own API has answered, by its engine's log."""
    return sparkctl("logs", "--run", run_id, "--lines", "2000").count('"POST /v1/completions')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", default="30000", help="of the router; the engines take those after it")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "command": sys.argv,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "versions": {name: metadata.version(name) for name in ("sglang", "sglang-router")},
        "recipe": RECIPE,
    }
    with tempfile.TemporaryDirectory() as folder:
        recipe, file = Path(folder) / "two-groups.yaml", Path(folder) / "plan.json"
        recipe.write_text(RECIPE)
        sparkctl("tiny-model", "qwen3", str(Path.home() / ".local/share/sparkctl/models/tiny-qwen3"))
        sparkctl("plan", "--recipe", str(recipe), "--port", options.port, "--output", str(file))
        planned = json.loads(file.read_text())
        try:
            start(file, planned, report)
            ask(planned, report)
            ask_with_one_group_dead(planned, report)
        finally:
            report["down"] = json.loads(sparkctl("down", "--run", planned["deployment"], "--json"))
            text = json.dumps(report, indent=1).replace(str(Path.home()), "~").replace(sys.prefix, "V")
            (options.out / "two-groups.json").write_text(text + "\n")


def start(file: Path, planned: dict[str, Any], report: dict[str, Any]) -> None:
    begin = time.monotonic()
    report["ready"] = json.loads(sparkctl("up", "--plan", str(file), "--json"))
    report["up_s"] = round(time.monotonic() - begin, 1)
    report["runs"] = {
        plan["run_id"]: {
            "part": plan["part"],
            "api": plan["api"],
            "nodes": [node["node"]["name"] for node in plan["nodes"]],
            "argv": [node["argv"][1:] for node in plan["nodes"]],
        }
        for plan in planned["plans"]
    }
    print("up", report["up_s"], report["ready"]["timings_s"], flush=True)


def ask(planned: dict[str, Any], report: dict[str, Any]) -> None:
    *groups, router = planned["plans"]
    port, name = router["api"]["port"], router["api"]["served_name"]
    before = {plan["run_id"]: answered(plan["run_id"]) for plan in groups}
    report["both"] = [complete(port, name, seed) for seed in range(1, 9)]
    report["answered_by"] = {run: answered(run) - count for run, count in before.items()}
    report["status"] = json.loads(sparkctl("status", "--json"))
    print("both", report["answered_by"], report["status"]["verdict"], flush=True)
    if min(report["answered_by"].values()) == 0:
        sys.exit("both groups must answer")


def ask_with_one_group_dead(planned: dict[str, Any], report: dict[str, Any]) -> None:
    """A rank of the second group is killed; the other answers everything once the router has noticed."""
    router, plan = planned["plans"][-1], planned["plans"][1]
    last = plan["nodes"][-1]
    state = json.loads((Path(last["state_path"]) / "runs" / plan["run_id"] / "state.json").read_text())
    os.kill(int(next(iter(state["ranks"]))), signal.SIGKILL)
    port, name = router["api"]["port"], router["api"]["served_name"]
    begin, failures, in_a_row = time.monotonic(), 0, 0
    replies = []
    while in_a_row < 8 and time.monotonic() - begin < _LEFT_LIMIT_S:
        try:
            replies.append(complete(port, name, 100 + len(replies)))
            in_a_row += 1
        except (urllib.error.URLError, ConnectionError):
            failures, in_a_row = failures + 1, 0
            time.sleep(0.2)
    report["one_group_killed"] = {
        "failed_requests": failures,
        "answered_in_a_row": in_a_row,
        "seconds": round(time.monotonic() - begin, 2),
        "replies": replies,
        "status": sparkctl("status", status=6),
    }
    print(report["one_group_killed"]["status"], failures, flush=True)
    if in_a_row < 8:
        sys.exit("the group that is left must answer everything")


if __name__ == "__main__":
    main()

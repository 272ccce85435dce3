"""Two groups of CPU nodes behind the real sglang-router, started, asked, and one of them ended; raw JSON.

    python benchmarks/two_groups.py --router-python V/bin/python --out O

The shape of v41-flash-8x on one machine: 2 groups of 2 nodes (TP 2 each, tiny Qwen3, SGLang on the CPU). Only
commands that a user types: `sparkctl plan --group`, `up --plan`, the router's command from the plan, `down`.
V has sglang-router 0.3.2.
"""

import argparse
import json
import os
import platform
import shlex
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
_ROUTER_LIMIT_S, _DOWN_LIMIT_S = 60, 60


def sparkctl(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words], capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        sys.exit(f"sparkctl {shlex.join(words)} must end well, got {done.returncode}:\n{done.stderr[-2000:]}")
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


def await_router(port: int, served_name: str) -> float:
    begin = time.monotonic()
    while time.monotonic() - begin < _ROUTER_LIMIT_S:
        try:
            complete(port, served_name, 0)
            return round(time.monotonic() - begin, 2)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    sys.exit(f"the router must answer within {_ROUTER_LIMIT_S} s, it did not")


def answered(run_id: str) -> int:
    """Requests that the group's own API has answered, by its engine's log."""
    return sparkctl("logs", "--run", run_id, "--lines", "2000").count('"POST /v1/completions')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--router-python", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    version = [
        str(options.router_python),
        "-c",
        "import importlib.metadata as m; print(m.version('sglang-router'))",
    ]
    report: dict[str, Any] = {
        "command": sys.argv,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "versions": {
            "sglang": metadata.version("sglang"),
            "sglang-router": subprocess.run(
                version, capture_output=True, text=True, check=True
            ).stdout.strip(),
        },
        "recipe": RECIPE,
        "groups": {},
    }
    plans: list[dict[str, Any]] = []
    router: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "two-groups.yaml").write_text(RECIPE)
        deployment = f"groups-{os.getpid()}"
        sparkctl("tiny-model", "qwen3", str(Path.home() / ".local/share/sparkctl/models/tiny-qwen3"))
        try:
            for group in (1, 2):
                path = folder / f"group-{group}.json"
                chosen = ["--recipe", str(folder / "two-groups.yaml"), "--nodes", "4", "--run-id", deployment]
                sparkctl("plan", *chosen, "--group", str(group), "--output", str(path))
                plans.append(json.loads(path.read_text()))
                begin = time.monotonic()
                sparkctl("up", "--plan", str(path))
                run_id = plans[-1]["run_id"]
                report["groups"][run_id] = {
                    "api": plans[-1]["api"],
                    "nodes": [node["node"]["name"] for node in plans[-1]["nodes"]],
                    "up_s": round(time.monotonic() - begin, 1),
                }
                print(run_id, report["groups"][run_id], flush=True)
            router = start_router(plans[0], options, report)
            ask(plans, report)
        finally:
            if router is not None:
                router.terminate()
                router.wait()
            for plan in plans:
                subprocess.run(
                    [sys.executable, "-m", "launcher", "down", "--run", plan["run_id"]], timeout=300
                )
            (options.out / "two-groups.json").write_text(json.dumps(report, indent=1) + "\n")


def start_router(plan: dict[str, Any], options: argparse.Namespace, report: dict[str, Any]) -> Any:
    """The command as the plan names it; its `python` is the one that has the router."""
    (note,) = [text for text in plan["nodes"][0]["notes"] if text.startswith("router")]
    words = shlex.split(note.partition("): ")[2])
    report["router"] = {"command": words}
    with (options.out / "router.log").open("wb") as log:
        router = subprocess.Popen(
            [str(options.router_python), *words[1:]], stdout=log, stderr=subprocess.STDOUT
        )
    port = int(words[words.index("--port") + 1])
    report["router"] |= {"port": port, "first_answer_s": await_router(port, plan["api"]["served_name"])}
    return router


def ask(plans: list[dict[str, Any]], report: dict[str, Any]) -> None:
    port, name = report["router"]["port"], plans[0]["api"]["served_name"]
    before = {plan["run_id"]: answered(plan["run_id"]) for plan in plans}
    report["both"] = [complete(port, name, seed) for seed in range(1, 9)]
    report["answered_by"] = {run: answered(run) - count for run, count in before.items()}
    print("both", report["answered_by"], flush=True)
    # One group ends; the other answers everything once the router has noticed.
    sparkctl("down", "--run", plans[1]["run_id"])
    begin, failures, in_a_row = time.monotonic(), 0, 0
    replies = []
    while in_a_row < 8 and time.monotonic() - begin < _DOWN_LIMIT_S:
        try:
            replies.append(complete(port, name, 100 + len(replies)))
            in_a_row += 1
        except (urllib.error.URLError, ConnectionError):
            failures, in_a_row = failures + 1, 0
            time.sleep(0.2)
    report["one_group_ended"] = {
        "failed_requests": failures,
        "answered_in_a_row": in_a_row,
        "seconds": round(time.monotonic() - begin, 2),
        "replies": replies,
    }
    print("one group ended", {key: report["one_group_ended"][key] for key in ("failed_requests", "seconds")})
    if min(report["answered_by"].values()) == 0 or in_a_row < 8:
        sys.exit("both groups must answer, and the one that is left everything")


if __name__ == "__main__":
    main()

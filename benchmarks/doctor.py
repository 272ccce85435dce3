"""Measure `sparkctl doctor` on nodes in network namespaces over real SSH: `python -m benchmarks.doctor
[--nodes 4]`.

Each round: facts, packets and checks alone, then the same with the collective probe, in turn. The engine is
the one of this Python (torch is needed). Writes raw.json with every round and summary.json with medians and
the bars. Needs root and OpenSSH, as tests/hosts does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from tests.hosts import NetnsHosts
from tests.hosts.netns_hosts import why_no_netns
from tests.launcher.doctor.netns_cluster import netns_inputs

BARS = {"doctor_s": 5.0, "doctor_with_collective_s": 20.0}


def measure(inputs: Path, *, collective: bool) -> dict[str, Any]:
    """One run of the command, from its start to its end; raises when a check refuses."""
    words = [sys.executable, "-m", "launcher", "doctor", "--json", "--recipe", str(inputs / "recipe.yaml")]
    words += [
        "--topology",
        str(inputs / "topology.yaml"),
        "--collective" if collective else "--no-collective",
    ]
    started = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    wall_s = time.monotonic() - started
    if done.returncode != 0:
        raise RuntimeError(f"sparkctl doctor ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    said = json.loads(done.stdout)
    levels = [item["level"] for item in said["findings"]]
    return {
        "collective": collective,
        "wall_s": round(wall_s, 3),
        "steps_s": said["seconds"],
        "findings": {level: levels.count(level) for level in sorted(set(levels))},
        "not_ok": [
            f"{i['level']} {i['check']}: {i['evidence']}" for i in said["findings"] if i["level"] != "ok"
        ],
        "all_reduce": said["collective"]["rows"] if said["collective"] else None,
    }


def write_inputs(hosts: NetnsHosts, folder: Path) -> None:
    """Recipe and topology files as a user writes them, and a small model that every node sees."""
    model = folder / "tiny-qwen3"
    subprocess.run(
        [sys.executable, "-m", "launcher", "tiny-model", "qwen3", str(model)], check=True, timeout=120
    )
    inputs = netns_inputs(hosts, engine=sys.prefix)
    recipe = inputs.recipe.model_dump(mode="json", exclude_unset=True) | {"model": {"path": str(model)}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "topology.yaml").write_text(
        yaml.safe_dump(inputs.topology.model_dump(mode="json", exclude_unset=True))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if reason := why_no_netns():
        raise SystemExit(reason)
    rounds: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="sparkctl-doctor-") as name, NetnsHosts(options.nodes) as hosts:
        write_inputs(hosts, Path(name))
        for i in range(options.rounds):
            for collective in (False, True):
                rounds.append({"round": i, **measure(Path(name), collective=collective)})
                print(json.dumps(rounds[-1]), flush=True)
    summary = summarise(rounds, options.nodes, load)
    print(json.dumps(summary, indent=2))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "raw.json").write_text(json.dumps(rounds, indent=2) + "\n")
        (options.output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if any(value > BARS[name] for name, value in summary["worst"].items()):
        sys.exit(1)


def summarise(rounds: list[dict[str, Any]], nodes: int, load: float) -> dict[str, Any]:
    walls = {
        "doctor_s": [item["wall_s"] for item in rounds if not item["collective"]],
        "doctor_with_collective_s": [item["wall_s"] for item in rounds if item["collective"]],
    }
    return {
        "what": f"sparkctl doctor over {nodes} nodes in network namespaces, SSH, gloo on CPU",
        "median": {name: statistics.median(values) for name, values in walls.items()},
        "worst": {name: max(values) for name, values in walls.items()},
        "bars": BARS,
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "load_before": load},
        "versions": {name: version(name) for name in ("torch", "paramiko", "sglang")}
        | {"python": platform.python_version()},
        "note": "NCCL and RoCE were not run",
    }


if __name__ == "__main__":
    main()

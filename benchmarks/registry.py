"""Measure registries of many recipes with git and the command itself: `python -m benchmarks.registry OUT`.

Each round, in turn: add (fetch and check all of it), update with nothing new, pull of one recipe, search.
Every time is that of a whole process, from its start to its end. OUT/raw.json keeps every round.
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
from pathlib import Path

import yaml

from launcher.find_recipe import find_recipe
from launcher.registry.prepare_push import prepare_push
from launcher.registry.registry_index import sha256_of

BAR_S = 1.0
RECIPE = "v41-flash-3x"


def write_registry(directory: Path, num_recipes: int) -> None:
    """A bare repository; every recipe is a shipped one under another name."""
    content = yaml.safe_load(prepare_push(str(find_recipe(RECIPE))).content)
    work = directory / "work"
    entries = {}
    for number in range(num_recipes):
        name = f"recipe-{number:04}"
        text = yaml.safe_dump({**content, "name": name}, sort_keys=False).encode()
        path = work / "recipes" / name / "1.0.0.yaml"
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
        entries[name] = {
            "description": f"Number {number} of a benchmark", "model": content["model"]["repo"],
            "nodes": content["parallelism"]["nodes"], "runtime": content["engine"]["runtime"],
            "evidence": "not_run", "versions": {"1.0.0": {"sha256": sha256_of(text)}},
        }  # fmt: skip
    index = {"schema_version": 1, "recipes": entries}
    (work / "index.yaml").write_text(yaml.safe_dump(index, sort_keys=False, width=110))
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(directory / "registry.git")], check=True)


def timed(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall time, and CPU time of the command with its git: on a busy machine the second says more."""
    started, before = time.monotonic(), os.times()
    subprocess.run([sys.executable, "-m", "launcher", "recipe", *words], env=environment, check=True,
                   capture_output=True, timeout=120)  # fmt: skip
    wall_s, after = time.monotonic() - started, os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return round(wall_s, 4), round(cpu_s, 4)


def measure(directory: Path, rounds: int, num_recipes: int) -> list[dict[str, float]]:
    found = []
    for number in range(rounds):
        data = directory / f"data-{number}"
        environment = {**os.environ, "XDG_DATA_HOME": str(data)}
        name = f"@team/recipe-{num_recipes // 2:04}"
        commands = {
            "add": ["registry", "add", "team", str(directory / "registry.git")],
            "update_nothing_new": ["registry", "update"],
            "pull": ["pull", name, "--json"],
            "search": ["search", "number", "7", "--json"],
        }
        row: dict[str, float] = {}
        for key, words in commands.items():
            row[f"{key}_s"], row[f"{key}_cpu_s"] = timed(words, environment)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_registry(Path(scratch), options.recipes)
        rounds = measure(Path(scratch), options.rounds, options.recipes)
    raw = {
        "recipes": options.recipes,
        "bar_s": BAR_S,
        "machine": {
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "git": subprocess.run(
            ["git", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "load_average": os.getloadavg(),
        "rounds": rounds,
        "median_s": {key: statistics.median(item[key] for item in rounds) for key in rounds[0]},
        "max_s": {key: max(item[key] for item in rounds) for key in rounds[0]},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "raw.json").write_text(json.dumps(raw, indent=1) + "\n")
    print(json.dumps({key: raw[key] for key in ("median_s", "max_s", "load_average")}, indent=1))


if __name__ == "__main__":
    main()

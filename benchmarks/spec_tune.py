"""Speculation from `up` to a tuned cluster, as a user goes: python -m benchmarks.spec_tune OUT

Starts local-v41-dspark on two nodes of this machine (real SGLang on the CPU) without a cost table, asks it,
measures a table, starts again with it, asks the same, and starts a third time with another table on one node,
which must be refused. OUT gets transcript.json (every command with its output), metrics-*.txt (scrapes),
table.json and summary.json; the exit status is 1 where a reply changed or a start did not end as it must.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from sgl_ext.speculation.cost_table_file import CostTableFile, write_cost_table

RECIPE, NODES, PORT = "local-v41-dspark", 2, 47310
TABLE = f"cost-tables/{RECIPE}.json"


class User:
    """One user's home; keeps what was typed and what came back."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.commands: list[dict[str, Any]] = []

    def run(self, *words: str, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            env=environment | {"PYTHONPATH": str(Path(__file__).parents[1])},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        entry = {"words": words, "exit": done.returncode, "seconds": round(time.monotonic() - begin, 2)}
        entry |= {
            name: text.replace(str(self.home), "~").splitlines()
            for name, text in (("stdout", done.stdout), ("stderr", done.stderr))
        }
        self.commands.append(entry)
        print(" ".join(words), done.returncode, f"{entry['seconds']} s", flush=True)
        return done

    def tables(self) -> list[Path]:
        return [self.home / f".local/state/sparkctl/node-{rank}" / TABLE for rank in range(NODES)]

    def table_hashes(self) -> list[str]:
        """What the ranks of the newest run decide from."""
        state = self.home / ".local/state/sparkctl"
        run_id = max(path.name for path in (state / "control").iterdir())
        reports = sorted(state.glob(f"node-*/runs/{run_id}/reports/rank-*.json"))
        return [json.loads(path.read_text())["details"]["speculation"]["table_hash"] for path in reports]


def ask_all() -> list[list[int]]:
    """24 greedy replies, four at a time, of 40 tokens each."""

    def ask(idx: int) -> list[int]:
        body = {
            "input_ids": [300 + (17 * idx + 29 * place) % 600 for place in range(20 + 7 * idx)],
            "sampling_params": {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True},
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/generate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as reply:
            return list(json.loads(reply.read())["output_ids"])

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(ask, range(24)))


def scrape(path: Path) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    path.write_text("".join(f"{line}\n" for line in lines if "sparkctl_spec" in line))


def double_times(path: Path) -> None:
    """Another table of the same engine, whole and valid."""
    file = CostTableFile.model_validate_json(path.read_bytes())
    table = file.table()
    slower = replace(table, verify_ns=tuple(tuple(2 * ns for ns in row) for row in table.verify_ns))
    write_cost_table(path, file.engine, slower, file.samples)


def go(user: User, out: Path) -> dict[str, Any]:
    up = ("up", "--recipe", RECIPE, "--nodes", str(NODES), "--port", str(PORT))
    found: dict[str, Any] = {"untuned_up": user.run(*up).returncode, "untuned_hashes": user.table_hashes()}
    before = ask_all()
    user.run("status")
    scrape(out / "metrics-untuned.txt")
    found["tune"] = user.run(
        "tune", "spec", "--max-batch", "4", "--context-tokens", "64", "--allow-busy", limit_s=900
    ).returncode
    user.run("down")
    found["tuned_up"] = user.run(*up).returncode
    found["tuned_hashes"] = user.table_hashes()
    after = ask_all()
    found["replies"], found["replies_equal"] = len(before), sum(map(list.__eq__, before, after))
    user.run("status")
    scrape(out / "metrics-tuned.txt")
    user.run("audit")
    user.run("down")
    (out / "table.json").write_bytes(user.tables()[0].read_bytes())
    double_times(user.tables()[1])
    refused = user.run(*up)
    found["differing_up"] = refused.returncode
    found["refusal_names_the_table"] = "cost table must be the same on every rank" in (
        refused.stdout + refused.stderr
    )
    return found


def is_right(found: dict[str, Any]) -> bool:
    starts = [found.get(name) for name in ("untuned_up", "tune", "tuned_up")]
    return (
        starts == [0, 0, 0]
        and found["untuned_hashes"] == ["untuned"] * NODES
        and len(set(found["tuned_hashes"])) == 1
        and found["tuned_hashes"][0].startswith("sha256:")
        and found["replies_equal"] == found["replies"]
        and found["differing_up"] != 0
        and bool(found["refusal_names_the_table"])
    )


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sparkctl-tune-") as home:
        user = User(Path(home))
        found: dict[str, Any] = {}
        try:
            found = go(user, out)
        finally:
            user.run("down", "--all")
            found["right"] = bool(found) and is_right(found)
            (out / "transcript.json").write_text(json.dumps(user.commands, indent=1) + "\n")
            (out / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0 if found["right"] else 1


if __name__ == "__main__":
    raise SystemExit(main())

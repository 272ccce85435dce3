"""`results reproduce` end to end: the benchmark's own settings and prompts again, from the manifest alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from launcher.results.reproduce_run import input_differences
from launcher.results.verify_run import verify_run
from tests.launcher.bench.replay_server import MODEL, ReplayServer


def test_the_second_run_has_the_inputs_of_the_first(tmp_path: Path) -> None:
    """The speed of this server is no matter here: either verdict is right, another input is not."""
    first = tmp_path / "run"
    sparkctl = [sys.executable, "-m", "launcher"]
    small = ["--kinds", "prose", "-c", "1,2", "--rounds", "1", "-o", str(first)]
    with ReplayServer() as server:
        bench = [*sparkctl, "bench", "--url", server.url, "--model", MODEL, *small]
        subprocess.run(bench, check=True, capture_output=True, timeout=60)
        again = [*sparkctl, "results", "reproduce", str(first), "--url", server.url, "--json"]
        done = subprocess.run(again, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 8), done.stderr
    told = json.loads(done.stdout)
    runs = [verify_run(path) for path in (first, tmp_path / "run-again-1")]
    assert input_differences(*[run.manifest for run in runs]) == ()
    assert [told["first_seal"], told["second_seal"]] == [run.manifest.seal for run in runs]
    assert (done.returncode == 0) == (told["verdict"] == "reproduced")
    assert (tmp_path / "run-again-1.verdict.json").is_file()
    # On a busy machine an answer may arrive at once: it then has no decode rate, and still its wait.
    waits = [item["concurrency"] for item in told["figures"] if item["figure"] == "ttft_round_s"]
    assert waits == [1, 2]

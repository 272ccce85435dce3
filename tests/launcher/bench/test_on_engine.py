"""Every suite on the embedded engine, in a setting of seconds; one engine for all."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.bench.corpus import read_corpus
from launcher.compose_recipe import load_recipe
from tests.cluster.leftovers import free_ports
from tests.cluster.sparkctl_process import COMMAND, Sparkctl, assert_one_clear_error

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("sglang") is None or not COMMAND.exists(),
        reason="needs the engine beside pytest: make up installs it",
    ),
]

BOOK = "https://www.gutenberg.org/files/1661/1661-0.txt"  # llama-benchy's default


# The prefix suite's figures of one request are the engine's own: without its report it tells none.
RECIPE = """schema_version: 1
name: mine
extends: local-1x
server:
  flags:
    enable-cache-report: true
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparkctl]:
    home = tmp_path_factory.mktemp("bench") / "home"
    model = home / ".local/share/sparkctl/models/tiny-qwen3"
    model.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "sgl_ext.tiny_model", "qwen3", str(model)]
    subprocess.run(argv, check=True, capture_output=True)
    sparkctl = Sparkctl(home)
    recipe = home / "mine.yaml"
    recipe.write_text(RECIPE)
    assert sparkctl.run("recipe", "lock", str(recipe), "--checkpoint", str(model)).exit_code == 0
    sparkctl.up("--recipe", str(recipe), "--port", str(free_ports(3)))
    yield sparkctl
    sparkctl.run("down", "--all")
    sparkctl.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results") / "run"


def test_every_suite_runs_and_its_result_verifies(cluster: Sparkctl, folder: Path) -> None:
    done = cluster.run(
        "bench", "--suite", "decode,prefill,mixed,prefix,needle,soak", "--rounds", "1",
        "--kinds", "prose,tools",
        "-c", "2", "--max-tokens", "24", "--prefill-tokens", "256,1M", "--prefix-tokens", "1024",
        "--mixed-tokens", "93335", "--mixed-delay-s", "0", "--needle-tokens", "256", "--soak-s", "1",
        "--soak-concurrency", "2", "--json", "-o", str(folder), timeout_s=200,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = done.json()
    cells = told["summary"]["cells"]
    assert {cell["suite"] for cell in cells} == {"decode", "prefill", "mixed", "prefix", "needle", "soak"}
    assert all(cell["discarded"] and cell["requests"] and not cell["failed"] for cell in cells)
    assert any("1048576 tokens left out" in note for note in told["notes"])
    assert any("scaled to" in cell["case"] for cell in cells)
    decode = next(cell for cell in cells if cell["suite"] == "decode")
    assert decode["steps_per_s"]["median"] > 0 and 0 < decode["tokens_per_step"]["median"] <= 2
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["versions"]["torch"] == version("torch")
    verified = cluster.run("results", "verify", str(folder))
    assert verified.exit_code == 0, verified.output


@pytest.mark.skipif(find_spec("llama_benchy") is None, reason="needs llama-benchy, of the extra llama-benchy")
def test_llama_benchy_itself_runs_and_its_file_is_kept(cluster: Sparkctl, tmp_path: Path) -> None:
    """Its book lies in its cache already: nothing is downloaded here."""
    book = cluster.home / ".cache/llama-benchy" / f"{hashlib.md5(BOOK.encode()).hexdigest()}.txt"
    book.parent.mkdir(parents=True, exist_ok=True)
    book.write_text(read_corpus().text(40_000, "book"))
    words = ("bench", "--protocol", "llama-benchy", "--prefill-tokens", "64", "-c", "1", "--rounds", "2")
    done = cluster.run(
        *words, "--max-tokens", "24", "--force-length", "--json", "-o", str(tmp_path / "run"), timeout_s=120
    )
    assert done.exit_code == 0, done.output
    (test,) = json.loads((tmp_path / "run/llama-benchy.json").read_text())["benchmarks"]
    assert test["response_size"] == 24 and len(test["tg_throughput"]["values"]) == 2
    assert done.json()["summary"]["cells"] == [], "its figures are in no table of ours"
    assert cluster.run("results", "verify", str(tmp_path / "run")).exit_code == 0


def test_a_lock_holds_and_the_prefix_suite_goes_on_after_the_restart(cluster: Sparkctl, folder: Path) -> None:
    resume = ("bench", "--resume", str(folder), "--after-restart")
    early = cluster.run(*resume, timeout_s=120)
    assert_one_clear_error(early, "must have been restarted", "sparkctl up", exit_code=8)

    recipe, lock = cluster.home / "mine.yaml", cluster.home / "mine.lock.yaml"
    assert cluster.run("down").exit_code == 0
    words = ("up", "--recipe", str(recipe), "--port", str(free_ports(3)))
    right, torch = lock.read_text(), version("torch")
    lock.write_text(right.replace(f"version: {torch}", "version: 2.0.0"))
    assert_one_clear_error(
        cluster.run(*words), f"torch must be 2.0.0 as locked, got {torch}", "--unlocked", exit_code=5
    )
    lock.write_text(right)
    cluster.up(*words[1:])
    recipe.write_text(RECIPE + "    stream-interval: 7\n")  # edited since: no word of what runs

    done = cluster.run(*resume, "--json", timeout_s=120)
    assert done.exit_code == 0, done.output
    cells = {cell["case"]: cell for cell in done.json()["summary"]["cells"]}
    assert cells["after restart 1024"]["requests"] == cells["cold 1024"]["requests"] == 1
    # The restarted engine's prefix cache is empty, the same prompt is not.
    assert cells["after restart 1024"]["cached_tokens"]["median"] < 64
    manifest = json.loads((folder / "manifest.json").read_text())
    prompts = {item["case"]: item["sha256"] for item in manifest["prompts"]}
    assert prompts["after restart 1024"] == prompts["cold 1024"]
    assert manifest["lock_sha256"] == hashlib.sha256(lock.read_bytes()).hexdigest()
    assert (folder / "lock.yaml").read_bytes() == lock.read_bytes()
    assert manifest["recipe"]["content"]["server"]["flags"] == {
        **load_recipe("local-1x")[0].server.model_dump()["flags"], "enable-cache-report": True
    }  # fmt: skip
    (node,) = manifest["nodes"]
    assert node["cpu"] and node["architecture"] == platform.machine() and node["num_cpus"] == os.cpu_count()
    assert cluster.run("results", "verify", str(folder)).exit_code == 0
    again = cluster.run("results", "reproduce", str(folder))
    assert_one_clear_error(again, "must be repeated in two steps", "--against", exit_code=2)

"""Every suite on the embedded engine, in a setting of seconds; one engine for all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.leftovers import free_ports
from tests.cluster.sparkctl_process import COMMAND, Sparkctl

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("sglang") is None or not COMMAND.exists(),
        reason="needs the engine beside pytest: make up installs it",
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparkctl]:
    home = tmp_path_factory.mktemp("bench") / "home"
    model = home / ".local/share/sparkctl/models/tiny-qwen3"
    model.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "sgl_ext.tiny_model", "qwen3", str(model)]
    subprocess.run(argv, check=True, capture_output=True)
    sparkctl = Sparkctl(home)
    sparkctl.up("--recipe", "local-1x", "--port", str(free_ports(3)))
    yield sparkctl
    sparkctl.run("down", "--all")
    sparkctl.close()


def test_every_suite_runs_and_its_result_verifies(cluster: Sparkctl, tmp_path: Path) -> None:
    done = cluster.run(
        "bench", "--suite", "decode,prefill,mixed,prefix,needle,soak", "--rounds", "1",
        "--kinds", "prose,tools",
        "-c", "2", "--max-tokens", "24", "--prefill-tokens", "256,1M", "--prefix-tokens", "1024",
        "--mixed-tokens", "93335", "--mixed-delay-s", "0", "--needle-tokens", "256", "--soak-s", "1",
        "--soak-concurrency", "2", "--json", "-o", str(tmp_path / "run"), timeout_s=200,
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
    verified = cluster.run("results", "verify", str(tmp_path / "run"))
    assert verified.exit_code == 0, verified.output

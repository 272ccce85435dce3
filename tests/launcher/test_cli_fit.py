"""sparkctl fit, as a user types it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from launcher.cli.app import main
from launcher.find_recipe import shipped_topologies
from tests.launcher.fit_checkpoint import write_checkpoint

REPOSITORY = Path(__file__).parents[2]
TRIANGLE = str(shipped_topologies()["spark-3-triangle"])


def fit(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The console entry point in this process: the same messages and exit status."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["sparkctl", "fit", *arguments]
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
    return subprocess.CompletedProcess(argv, status, out.getvalue(), err.getvalue())


def run_fit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", "fit", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_matrix_says_which_recipe_fits_where() -> None:
    done = fit()
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if " v41-flash-3x " in line)
    assert re.search(r"no: weights +fits: 749,824 tokens, chunk up to 768 \* +no: expert-width", line)
    assert "v4-flash-2x" in done.stdout.splitlines()[-1]


def test_one_recipe_lists_every_item_in_bytes() -> None:
    done = fit("--recipe", "v41-flash-3x")
    assert done.returncode == 0, done.stderr
    assert re.search(r"routed experts +96,259,276,800 +96,259,276,800 +stored bytes / tp", done.stdout)
    assert re.search(r"head-only processes +[\d,]{9,} +0 ", done.stdout)
    assert "up to 1,2" in done.stdout


def test_two_sparks_end_with_status_five_and_the_arithmetic() -> None:
    done = run_fit("--recipe", "v41-flash-3x", "--nodes", "2")
    assert done.returncode == 5
    assert "got 144.9 GiB at tp 2: routed experts 134.5 +" in done.stderr
    assert "-> use three or four Sparks" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "check"),
    [
        (("--recipe", "v41-flash-4x", "--ep", "1"), "expert-width"),
        (("--recipe", "v41-flash-3x", "--chunk", "1024"), "chunk-times-context"),
        (("--recipe", "v41-flash-3x", "--heads", "64"), "head-split"),
        (("--recipe", "v41-flash-4x", "--tokens", "7500000", "--chunk", "2048"), "headroom"),
    ],
)
def test_refusals_by_name(arguments: tuple[str, ...], check: str) -> None:
    done = fit(*arguments)
    assert done.returncode == 5
    assert f"[{check}]" in done.stderr


def test_json_has_items_with_sources_and_nodes() -> None:
    done = fit("--recipe", "v41-flash-3x", "--topology", TRIANGLE, "--json")
    document = json.loads(done.stdout)
    assert document["fits"] is True
    ranks = document["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2] and all(rank["node"] for rank in ranks)
    for rank in ranks:
        start = rank["usable_bytes"] - rank["left_bytes"]
        assert sum(item["bytes"] for item in rank["items"]) == start
    graphs = next(item for item in ranks[0]["items"] if item["name"] == "CUDA graphs")
    assert "boot log" in graphs["source"]


def test_real_checkpoint(tmp_path: Path) -> None:
    shards = write_checkpoint(tmp_path)
    done = fit("--recipe", "v41-flash-3x", "--checkpoint", str(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["shape"] == f"checkpoint {tmp_path}"
    routed = next(item for item in document["ranks"][0]["items"] if item["name"] == "routed experts")
    assert routed["bytes"] * 3 == 11_280_384
    (tmp_path / next(iter(shards))).unlink()
    broken = fit("--checkpoint", str(tmp_path))
    assert (broken.returncode, "missing" in broken.stderr) == (5, True)


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("--recipe", "local"), 2, "runs the CPU engine"),
        (("--recipe", "v4-flash-2x"), 2, "must serve DeepSeek-V4.1-Flash"),
        (("--model", "v4"), 2, "--model must be one of v41-flash"),
        (("--model", "v41-flash", "--checkpoint", "x"), 2, "must not be given together"),
        (("--nodes", "3"), 2, "must come with --recipe"),
        (("--checkpoint", "/gone"), 5, "must be a directory"),
        (("--recipe", "v41-flash-4x", "--topology", TRIANGLE), 2, "4 nodes must be in"),
        (("--recipe", "v41-flash-4x", "--topology", "gone.yaml"), 3, "existing YAML file"),
        (("--recipe", "v41-flash-4x", "--nodes", "0"), 2, "nodes"),
    ],
)
def test_wrong_inputs(arguments: tuple[str, ...], status: int, expected: str) -> None:
    done = fit(*arguments)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_every_check_is_documented() -> None:
    text = (REPOSITORY / "docs" / "fit.md").read_text()
    source = "".join(path.read_text() for path in (REPOSITORY / "launcher" / "fit").glob("*.py"))
    names = set(re.findall(r'(?:FitProblem\.(?:refuse|warn)|report)\(\s*"([a-z-]+)"', source))
    assert {"weights", "headroom", "expert-width"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []

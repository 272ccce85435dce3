"""With --json, stdout holds one JSON object also when the command fails; the text still goes to stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["status"], 2),
        (["plan", "--recipe", "no-such-recipe"], 2),
        (["up", "--plan", "missing.json"], 2),
        (["recipe", "show", "no-such-recipe"], 2),
    ],
)
def test_errors_are_json_too(words: list[str], status: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words, "--json"],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    error = json.loads(done.stdout)["error"]
    assert done.returncode == error["exit_status"]
    assert done.returncode in (status, 3)
    assert error["message"] and error["hint"]
    assert done.stderr.startswith("error: ")

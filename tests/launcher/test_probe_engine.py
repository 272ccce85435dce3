"""What a node's probe tells of the engine's environment, on real directories and real interpreters."""

from __future__ import annotations

import sys
from pathlib import Path

from launcher.node.probe import _engine, _versions_on_disk


def make_venv(root: Path, **versions: str) -> str:
    site = root / "lib/python3.12/site-packages"
    site.mkdir(parents=True)
    for name, version in versions.items():
        (site / f"{name}-{version}.dist-info").mkdir()
    python = root / "bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    return str(python)


def test_versions_come_from_the_metadata_on_disk(tmp_path: Path) -> None:
    python = make_venv(tmp_path, sglang="0.5.23", sparkctl="0.1.0", torch="2.14.1+cu130")
    assert _engine("venv", python) == {
        "python": python,
        "problem": None,
        "sglang": "0.5.23",
        "sparkctl": "0.1.0",
        "torch": "2.14.1+cu130",
    }


def test_what_is_not_on_disk_is_asked_from_the_interpreter(tmp_path: Path) -> None:
    python = make_venv(tmp_path, sglang="0.5.23")
    assert _versions_on_disk(Path(python)) is None
    assert _engine("venv", python)["python"] == python


def test_two_versions_side_by_side_are_not_guessed(tmp_path: Path) -> None:
    python = make_venv(tmp_path, sglang="0.5.23", sparkctl="0.1.0", torch="2.14.1")
    (tmp_path / "lib/python3.12/site-packages/sglang-0.5.22.dist-info").mkdir()
    assert _versions_on_disk(Path(python)) is None


def test_an_interpreter_that_does_not_run_is_a_problem_with_its_last_words(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho cannot execute binary >&2\nexit 126\n")
    python.chmod(0o755)
    assert "does not run: cannot execute binary" in _engine("venv", str(python))["problem"]


def test_no_interpreter(tmp_path: Path) -> None:
    assert "there is no" in _engine("venv", str(tmp_path / "bin/python"))["problem"]

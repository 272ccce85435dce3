"""A run that goes on must go on with the recipe and lock that it began with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.run_folder import SETTINGS_NAME, RunFolder
from launcher.bench.settings import BenchSettings
from launcher.errors import UsageError
from launcher.results.manifest import MANIFEST_NAME

BEGAN: dict[str, str | None] = {"recipe": "ab" * 32, "lock": "cd" * 32}


@pytest.mark.parametrize("name", ["recipe", "lock"])
@pytest.mark.parametrize("other", [None, "ef" * 32])
def test_another_cluster_is_refused(tmp_path: Path, name: str, other: str | None) -> None:
    folder = RunFolder.create(tmp_path / "run", BenchSettings())
    folder.begin_on(BEGAN)
    RunFolder.open(tmp_path / "run").begin_on(BEGAN)
    (tmp_path / "run" / MANIFEST_NAME).write_text("{}")
    again = RunFolder.open(tmp_path / "run")
    changed = replace(again, settings=BenchSettings(after_restart=True))
    before = (tmp_path / "run" / SETTINGS_NAME).read_bytes()
    with pytest.raises(UsageError, match=f"go on with the {name} that the run began with"):
        changed.begin_on({**BEGAN, name: other})
    assert (tmp_path / "run" / MANIFEST_NAME).exists(), "a refused run stays finished"
    assert (tmp_path / "run" / SETTINGS_NAME).read_bytes() == before
    changed.begin_on(BEGAN)
    assert not (tmp_path / "run" / MANIFEST_NAME).exists()
    assert RunFolder.open(tmp_path / "run").settings.after_restart


def test_a_run_without_a_lock_goes_on_without_one(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", BenchSettings())
    folder.begin_on({"recipe": "ab" * 32, "lock": None})
    with pytest.raises(UsageError, match=r"began with \(none\), got cdcdcdcdcdcd"):
        RunFolder.open(tmp_path / "run").begin_on(BEGAN)

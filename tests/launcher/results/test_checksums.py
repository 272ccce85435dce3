"""Every folder under results/ tells when a file of it was changed; the list of folders says what it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from launcher.results.manifest import MANIFEST_NAME
from launcher.results.run_directory import SUMS

RESULTS = Path(__file__).parents[3] / "results"
FOLDERS = sorted(path for path in RESULTS.iterdir() if path.is_dir())
MEASUREMENTS = [path for path in FOLDERS if not (path / MANIFEST_NAME).is_file()]


@pytest.mark.parametrize("folder", MEASUREMENTS, ids=lambda path: path.name)
def test_the_checksums_are_those_of_the_files(folder: Path) -> None:
    lines = (folder / SUMS).read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path != folder / SUMS
    }
    assert listed == files, "after a new measurement: scripts/checksum_results.sh FOLDER"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_list_of_folders_says_what_each_is(folder: Path) -> None:
    assert f"| `{folder.name}` |" in (RESULTS / "README.md").read_text()

"""What a benchmark cannot measure is refused before its 5.6 GB table is written."""

import tempfile
from pathlib import Path

import pytest

from engram.bench.run_bench import BenchRequest, run_bench
from engram.errors import DiskError, EngramError

COLUMN_ROWS = 1000


def refuse(directory: Path, results: Path, **changes: object) -> None:
    fields = {"directory": directory, "results": results, "text_roots": (), "column_rows": COLUMN_ROWS}
    run_bench(BenchRequest(**(fields | changes)), report=print)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": ("cpu-hit", "")}, "--only must be of"),
        ({"queue_depth": 0}, "--queue-depth must be 1 to 1024, got 0"),
        ({"queue_depth": 99_999}, "--queue-depth must be 1 to 1024, got 99999"),
    ],
)
def test_options_are_checked_first(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(EngramError, match=message):
        refuse(tmp_path / "table", tmp_path / "results", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for directory, results in ((file, tmp_path / "results"), (tmp_path / "table", file)):
        with pytest.raises(DiskError, match=r"create the folder must succeed, got EEXIST: .*file\)"):
            refuse(directory, results)
    assert not (tmp_path / "table").exists()


def test_memory_is_no_disk(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        with pytest.raises(
            DiskError, match="must allow O_DIRECT, got one that keeps files in memory"
        ) as caught:
            refuse(Path(memory), tmp_path)
        assert "--directory" in caught.value.hint
        assert list(Path(memory).iterdir()) == []

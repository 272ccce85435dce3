"""The lock of the run in the run's directory: the very bytes, or only its hash where they are gone."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bench.keep_lock import KeptLock, keep_lock
from launcher.plan import LockPlan
from launcher.preflight import LOCK_CHECK
from launcher.results.run_directory import LOCK
from launcher.run_record import RunRecord
from tests.launcher.local_plan import local_plan

TEXT = "schema_version: 1\n"
SHA256 = hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "mine.lock.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def record_of(lock: Path, skipped: tuple[str, ...] = ()) -> RunRecord:
    plan = replace(
        local_plan(),
        lock=LockPlan(file=str(lock), sha256=SHA256, differences=(), versions={}, content={}, files={}),
    )
    return RunRecord(plan=plan, status="ready", started_unix=1.0, timings={}, skipped_checks=skipped)


def test_the_lock_of_the_start_is_kept(lock: Path, folder: Path) -> None:
    assert keep_lock(record_of(lock), folder) == KeptLock(sha256=SHA256)
    assert (folder / LOCK).read_text() == TEXT


@pytest.mark.parametrize("change", ["other", "none"])
def test_a_lock_that_changed_since_is_named_by_its_hash_only(lock: Path, folder: Path, change: str) -> None:
    (folder / LOCK).write_text("of an earlier part of this run")
    if change == "other":
        lock.write_text(TEXT + "# edited\n")
    else:
        lock.unlink()
    kept = keep_lock(record_of(lock), folder)
    assert kept.sha256 == SHA256 and "no longer" in kept.notes[0]
    assert not (folder / LOCK).exists()


def test_a_lock_that_was_not_compared_is_not_the_lock_of_the_run(lock: Path, folder: Path) -> None:
    kept = keep_lock(record_of(lock, (LOCK_CHECK,)), folder)
    assert kept.sha256 is None and "--unlocked" in kept.notes[0]
    assert not (folder / LOCK).exists()


def test_without_a_lock_there_is_nothing_to_say(folder: Path) -> None:
    no_lock = RunRecord(plan=local_plan(), status="ready", started_unix=1.0, timings={})
    assert keep_lock(no_lock, folder) == keep_lock(None, folder) == KeptLock()

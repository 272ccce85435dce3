"""A run's lock: checked with the run, asked of the cluster that repeats it, published only as it was."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.bench.endpoint import Endpoint
from launcher.compose_recipe import load_recipe
from launcher.errors import ConfigError, ResultWrong
from launcher.plan import LockPlan
from launcher.preflight import LOCK_CHECK
from launcher.results.finish_run import finish_run
from launcher.results.manifest import Manifest, Resolved, resolve
from launcher.results.private_values import Scrubber
from launcher.results.publish_run import scrubbed_copy
from launcher.results.run_again import refuse_another_lock, refuse_other_inputs
from launcher.results.run_directory import LOCK
from launcher.results.verify_run import VerifiedRun, verify_run
from launcher.run_record import RunRecord
from tests.launcher.local_plan import local_plan
from tests.launcher.results.make_run import make_facts, make_run

TEXT = "schema_version: 1\nrecipe: {name: local, sha256: tower7}\n"
SHA256 = hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Locked, of the shipped recipe for three nodes."""
    recipe = load_recipe("local")[0]
    directory = make_run(tmp_path / "run")
    (directory / LOCK).write_text(TEXT)
    facts = make_facts(lock_sha256=SHA256, recipe=resolve("local", recipe.model_dump(mode="json")))
    finish_run(directory, facts, references=())
    return directory


def cluster(sha256: str | None, *, skipped: tuple[str, ...] = (), **changes: Any) -> Endpoint:
    """One that serves what the run's cluster served, from this lock."""
    lock = None
    if sha256 is not None:
        lock = LockPlan(
            file="/home/ada/local.lock.yaml", sha256=sha256, differences=(), versions={}, content={}, files={}
        )
    plan = replace(local_plan(), lock=lock, values=load_recipe("local")[0])
    plan = replace(plan, **changes)
    record = RunRecord(plan=plan, status="ready", started_unix=1.0, timings={}, skipped_checks=skipped)
    return Endpoint(url="http://127.0.0.1:1", model="tiny", record=record)


def test_the_lock_is_part_of_the_run(run: Path) -> None:
    assert verify_run(run).manifest.lock_sha256 == SHA256
    (run / LOCK).write_text(TEXT.replace("tower7", "tower8"))
    with pytest.raises(ResultWrong, match=r"lock\.yaml must have sha256"):
        verify_run(run)


@pytest.mark.parametrize("named", [None, "ab" * 32])
def test_another_lock_than_the_manifest_names_is_found_under_new_hashes(run: Path, named: str | None) -> None:
    manifest = verify_run(run).manifest
    finish_run(run, make_facts(lock_sha256=named, recipe=manifest.recipe), references=())
    with pytest.raises(ResultWrong, match=r"lock\.yaml must be the lock of the manifest"):
        verify_run(run)


def test_a_cluster_of_the_same_lock_is_taken(run: Path) -> None:
    first = verify_run(run)
    refuse_other_inputs(first.manifest, cluster(SHA256))
    refuse_another_lock(first, cluster(SHA256))


@pytest.mark.parametrize(
    "endpoint", [cluster(None), cluster("cd" * 32), cluster(SHA256, skipped=(LOCK_CHECK,))]
)
def test_a_cluster_without_or_of_another_lock_is_refused(run: Path, endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match=f"started from the lock of the run .{SHA256[:12]}") as caught:
        refuse_another_lock(verify_run(run), endpoint)
    assert f"install -D -m 644 {run / LOCK}" in (caught.value.hint or "")
    (run / LOCK).unlink()
    with pytest.raises(ConfigError) as caught:
        refuse_another_lock(_without_copy(run), endpoint)
    assert "ask who made the run for its lock" in (caught.value.hint or "")


def _without_copy(run: Path) -> VerifiedRun:
    finish_run(run, make_facts(lock_sha256=SHA256, recipe=_recipe()), references=())
    return verify_run(run)


def _recipe() -> Resolved:
    return resolve("local", load_recipe("local")[0].model_dump(mode="json"))


def test_a_run_without_a_lock_is_repeated_without_one(run: Path) -> None:
    (run / LOCK).unlink()
    finish_run(run, make_facts(lock_sha256=None, recipe=_recipe()), references=())
    refuse_another_lock(verify_run(run), cluster(None))
    refuse_another_lock(verify_run(run), cluster(SHA256, skipped=(LOCK_CHECK,)))
    with pytest.raises(ConfigError, match=r"lock of the run \(none\)") as caught:
        refuse_another_lock(verify_run(run), cluster(SHA256))
    assert "--unlocked" in (caught.value.hint or "")


def test_a_cluster_of_other_values_is_refused(run: Path) -> None:
    """What it was started from counts, whatever the recipe's file says now."""
    manifest: Manifest = verify_run(run).manifest
    other = load_recipe("local-v41")[0]
    with pytest.raises(ConfigError, match="with other values"):
        refuse_other_inputs(manifest, cluster(SHA256, values=other))
    with pytest.raises(ConfigError, match="whose plan lacks the recipe") as caught:
        refuse_other_inputs(manifest, cluster(SHA256, values=None))
    assert "sparkctl down --run" in (caught.value.hint or "")


def test_a_lock_is_published_as_it_was_or_not_at_all(run: Path) -> None:
    first = verify_run(run)
    with scrubbed_copy(first, Scrubber(), render=None) as made:
        assert (made.directory / LOCK).read_text() == TEXT
    with scrubbed_copy(first, Scrubber(("tower7",)), render=None) as made:
        assert not (made.directory / LOCK).exists()
        assert made.manifest.lock_sha256 == SHA256
        assert [item.replaced_by for item in made.scrubbed] == ["name-0"]
        assert any("lock.yaml is left out" in note for note in made.manifest.notes)

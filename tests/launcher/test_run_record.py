"""Records of runs: found again from another process, one open run a node, keys for their user only."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import ConfigError, NoSuchRun, UsageError
from launcher.run_record import KEEP_RECORDS, RunRecord, RunRecords
from tests.launcher.local_plan import local_plan


@pytest.fixture
def records(tmp_path: Path) -> RunRecords:
    return RunRecords(tmp_path / "control")


def record(run_id: str, *, status: str = "ready", num_nodes: int = 2) -> RunRecord:
    return RunRecord(
        plan=local_plan(num_nodes, run_id), status=status, started_unix=1.5, timings={"plan_s": 0.1}, note="n"
    )


def test_a_record_round_trips(records: RunRecords) -> None:
    saved = replace(record("run-1"), skipped_checks=("port",))
    records.save(saved)
    assert RunRecords(records.root).load("run-1") == saved
    assert stat.S_IMODE((records.root / "run-1" / "record.json").stat().st_mode) == 0o600


def test_the_only_open_run_is_chosen_then_the_newest(records: RunRecords) -> None:
    with pytest.raises(NoSuchRun, match="no run was started"):
        records.choose(None)
    records.save(record("run-1"))
    records.save(record("run-2", status="failed"))
    assert records.choose(None).run_id == "run-1"
    records.update(records.load("run-1"), status="stopped")
    assert records.choose(None).run_id == "run-2"
    assert records.choose("run-1").run_id == "run-1"
    with pytest.raises(NoSuchRun, match=r"there must be a run ../x, this machine has run-2, run-1"):
        records.choose("../x")


def test_two_open_runs_must_be_told_apart(records: RunRecords) -> None:
    records.save(record("run-1"))
    records.save(record("run-2"))
    with pytest.raises(UsageError, match="2 are open: run-2, run-1"):
        records.choose(None)


def test_a_new_run_on_the_same_nodes_closes_the_old_record(records: RunRecords) -> None:
    """A run that died unseen stays "ready" on disk;
    it must not make every later command ask which run is meant.
    """
    records.save(record("run-1", num_nodes=3))
    new = record("run-2", status="starting", num_nodes=1)
    records.save(new)
    records.close_superseded(new.plan)
    assert records.load("run-1").status == "stopped" and "run-2" in records.load("run-1").note
    assert records.choose(None).run_id == "run-2"


def test_a_run_on_other_nodes_stays_open(records: RunRecords) -> None:
    old = record("run-1", num_nodes=1)
    elsewhere = replace(old.plan.nodes[0], state_path="/elsewhere")
    records.save(replace(old, plan=replace(old.plan, nodes=(elsewhere,))))
    new = record("run-2")
    records.save(new)
    records.close_superseded(new.plan)
    assert records.load("run-1").status == "ready"


def test_a_key_is_for_its_user_only_and_goes_with_the_run(records: RunRecords) -> None:
    keys = {records.make_key("run-1"), records.make_key("run-2")}
    assert len(keys) == 2 and all(len(key) > 40 for key in keys)
    path = records.key_path("run-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and records.read_key("run-1") in keys
    records.forget_key("run-1")
    records.forget_key("run-1")
    assert records.read_key("run-1") is None and not path.exists()


def test_only_old_ended_records_are_removed(records: RunRecords) -> None:
    plan = local_plan(1)
    for index in range(KEEP_RECORDS + 3):
        status = "ready" if index == 0 else "stopped"
        run_id = f"run-{index:03}"
        records.save(
            RunRecord(plan=replace(plan, run_id=run_id), status=status, started_unix=0.0, timings={})
        )
    records.remove_old()
    left = records.run_ids()
    assert len(left) == KEEP_RECORDS + 1 and left[-1] == "run-000"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"plan": {}}', "\0", '{"plan'])
def test_the_only_record_is_named_when_it_cannot_be_read(records: RunRecords, content: str) -> None:
    """ "No run was started" would be untrue: something may still run."""
    records.save(record("run-1"))
    (records.root / "run-1" / "record.json").write_text(content)
    with pytest.raises(ConfigError, match="the record of run run-1 must be one that this version wrote"):
        records.choose(None)
    records.save(record("run-2"))
    assert records.choose(None).run_id == "run-2"
    assert list(records.unreadable()) == ["run-1"]


def test_a_copied_record_never_means_another_run(records: RunRecords) -> None:
    records.save(record("run-1"))
    (records.root / "run-1").rename(records.root / "run-2")
    with pytest.raises(ConfigError, match="got: run run-1, status ready"):
        records.load("run-2")


def test_a_status_of_another_version_is_refused(records: RunRecords) -> None:
    records.save(record("run-1", status="dancing"))
    with pytest.raises(ConfigError, match="status dancing"):
        records.load("run-1")


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "x" * 5000, "a\0b"])
def test_what_is_no_run_id_names_no_run(records: RunRecords, run_id: str) -> None:
    """An empty one is a shell variable that nobody set: `down --run "$RUN"` must not end some run."""
    records.save(record("run-1"))
    with pytest.raises(NoSuchRun):
        records.choose(run_id)


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="state directory must be writable, got: Not a directory"):
        RunRecords(tmp_path / "file" / "control").save(record("run-1"))
    with pytest.raises(ConfigError, match="state directory must be writable"):
        RunRecords(tmp_path / "file" / "control").make_key("run-1")

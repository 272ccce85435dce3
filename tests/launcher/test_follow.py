"""A rank dies under `up --follow` whose reader has gone: nobody is told, the run is ended and noted all the
same. The dying ranks of real engines are in tests/cluster; here the watch only says that one died.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import follow
from launcher.cli.show_progress import LiveProgress
from launcher.errors import RankDied, RunStopped, SparkctlError
from launcher.plan import LaunchPlan
from launcher.run_record import RunRecord, RunRecords
from tests.launcher.local_plan import local_plan


class Watch:
    def open(self, remotes: object, *, from_log_end: bool) -> None:
        pass

    def pump(self, seconds: float) -> None:
        raise RankDied("rank 1 was killed", node="node-1")


class DeafProgress(LiveProgress):
    def step(self, text: str) -> None:
        pass

    def failure(self, error: SparkctlError) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_death_that_nobody_hears_still_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    @contextmanager
    def watching(plan: object) -> Iterator[Watch]:
        yield Watch()

    def end_all(plan: Any, remotes: object, progress: object) -> None:
        ended.append(plan.run_id)

    monkeypatch.setattr(follow, "watching", watching)
    monkeypatch.setattr(follow, "SilenceWatch", lambda watch, progress: None)
    monkeypatch.setattr(follow, "end_all", end_all)
    records = RunRecords(tmp_path)
    record = RunRecord(plan=local_plan(2, "run-1"), status="ready", started_unix=1.0, timings={})
    with pytest.raises(BrokenPipeError):
        follow.follow_cluster([record], {}, records, DeafProgress())
    assert ended == ["run-1"]
    assert records.load("run-1").status == "failed" and "rank 1 was killed" in records.load("run-1").note


def part_record(part: str) -> RunRecord:
    plan = replace(local_plan(1, f"run-{part.split()[-1]}"), deployment="run", part=part)
    if plan.is_router:
        plan = replace(plan, nodes=(replace(plan.head, ranks=()),))
    return RunRecord(plan=plan, status="ready", started_unix=1.0, timings={})


class Cluster:
    """What the watches of groups and router say, by part and round; and what was ended for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: RunRecords, **events: str) -> None:
        self.events = {part.replace("_", " "): event for part, event in events.items()}
        self.ended: list[str] = []
        self.records = [part_record(part) for part in ("group 1", "group 2", "router")]
        for record in self.records:
            records.save(record)

        @contextmanager
        def watching(plan: LaunchPlan) -> Iterator[ScriptedWatch]:
            yield ScriptedWatch(plan, self.events.get(plan.part or "", ""))

        def end_all(plan: LaunchPlan, remotes: object, progress: object) -> None:
            self.ended.append(str(plan.part))

        monkeypatch.setattr(follow, "watching", watching)
        monkeypatch.setattr(follow, "SilenceWatch", lambda watch, progress: Silent())
        monkeypatch.setattr(follow, "_tell_frozen", lambda view, told, progress: told)
        monkeypatch.setattr(follow, "raise_if_failed", lambda watch: watch.look())
        monkeypatch.setattr(follow, "end_all", end_all)


class Silent:
    def check(self) -> None:
        pass


class ScriptedWatch(Watch):
    """`event`: the round in which it happens, and "dies" or "stopped"."""

    view = None

    def __init__(self, plan: LaunchPlan, event: str) -> None:
        self.plan, self.round = plan, 0
        number, _, self.what = event.partition(" ")
        self.at = int(number or 0)

    def pump(self, seconds: float) -> None:
        self.round += 1

    def look(self) -> None:
        assert self.round < 9, "following must have ended"
        if self.round == self.at:
            raise (RankDied if self.what == "dies" else RunStopped)(f"{self.plan.part}: it {self.what}")


class KeptProgress(LiveProgress):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def step(self, text: str) -> None:
        self.told.append(text)

    def failure(self, error: SparkctlError) -> None:
        self.told.append(f"failed: {error.message}")


@pytest.mark.parametrize(
    ("events", "ended", "last"),
    [
        ({"group_2": "1 dies", "router": "3 dies"}, ["group 2", "router", "group 1"], "router: it dies"),
        ({"group_2": "1 dies", "group_1": "2 dies"}, ["group 2", "group 1", "router"], "group 1: it dies"),
        ({"router": "1 dies"}, ["router", "group 1", "group 2"], "router: it dies"),
    ],
)
def test_a_group_that_dies_is_named_and_the_others_serve_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: dict[str, str], ended: list[str], last: str
) -> None:
    records, progress = RunRecords(tmp_path), KeptProgress()
    cluster = Cluster(monkeypatch, records, **events)
    with pytest.raises(RankDied, match=last):
        follow.follow_cluster(cluster.records, {}, records, progress)
    assert cluster.ended == ended and progress.told[-1] == f"failed: {last}"
    assert all(records.load(item.run_id).status == "failed" for item in cluster.records)
    if ended[0] == "group 2":
        assert any("group 2: it dies" in line for line in progress.told)
        assert "group 2 is gone; the router asks the others, which serve on" in progress.told


def test_down_elsewhere_ends_following_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, progress = RunRecords(tmp_path), KeptProgress()
    cluster = Cluster(monkeypatch, records, router="2 stopped", group_1="1 stopped")
    follow.follow_cluster(cluster.records, {}, records, progress)
    assert cluster.ended == [] and not any("failed" in line for line in progress.told)

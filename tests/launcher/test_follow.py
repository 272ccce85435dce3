"""A rank dies under `up --follow` whose reader has gone: nobody is told, the run is ended and noted all the
same. The dying ranks of real engines are in tests/cluster; here the watch only says that one died.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import follow
from launcher.cli.show_progress import LiveProgress
from launcher.errors import RankDied, SparkctlError
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
        follow.follow_cluster(record, {}, records, DeafProgress())
    assert ended == ["run-1"]
    assert records.load("run-1").status == "failed" and "rank 1 was killed" in records.load("run-1").note

"""Stay with a serving cluster: a rank that dies or freezes is named, and the others are ended."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from launcher.cli.show_progress import LiveProgress
from launcher.cluster_view import ClusterView
from launcher.errors import RankDied, RunStopped
from launcher.launch_cluster import PUMP_S, SilenceWatch, end_all, raise_if_failed
from launcher.remote import Remote
from launcher.run_record import RunRecord, RunRecords
from launcher.watch_cluster import watching


def follow_cluster(
    record: RunRecord, remotes: Mapping[str, Remote], records: RunRecords, progress: LiveProgress
) -> None:
    """Blocks until the run ends. Ctrl-C detaches: the cluster goes on. RankDied when a rank fails, all
    ended.
    """
    plan = record.plan
    with watching(plan) as watch:
        silence = SilenceWatch(watch, progress)
        frozen: set[str] = set()
        try:  # before it is offered: a Ctrl-C right after that line detaches
            progress.step("following; Ctrl-C detaches and leaves the cluster running")
            watch.open(remotes, from_log_end=True)
            while True:
                watch.pump(PUMP_S)
                frozen = _tell_frozen(watch.view, frozen, progress)
                raise_if_failed(watch)
                silence.check()
        except KeyboardInterrupt:
            typer.echo(detached_text(plan.run_id), err=True)
        except RunStopped as stop:
            typer.echo(stop.message, err=True)
        except RankDied as error:
            try:
                progress.failure(error)
            finally:  # also when whoever read our words has gone, or this machine's disk is full
                try:
                    records.update(record, status="failed", note=str(error))
                finally:
                    end_all(plan, remotes, progress)
            raise


def _tell_frozen(view: ClusterView, told: set[str], progress: LiveProgress) -> set[str]:
    """Warn once about each node with a stopped process; returns the nodes that have one now."""
    frozen = view.frozen()
    for name, pids in frozen.items():
        if name not in told:
            limit_s = view.plan.limits.freeze_timeout_s
            progress.step(
                f"warning: {name}: pid {pids[0]} is stopped (SIGSTOP); the run ends after {limit_s:.0f} s"
                f" of it. Continue it: kill -CONT {pids[0]}"
            )
    return set(frozen)


def detached_text(run_id: str) -> str:
    return f"detached; run {run_id} goes on. See it: sparkctl status. End it: sparkctl down --run {run_id}"

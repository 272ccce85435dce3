"""Stay with a serving cluster: a rank that dies or freezes is named, and the others are ended."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from launcher.cli.show_progress import LiveProgress
from launcher.errors import RankDied
from launcher.launch_cluster import PUMP_S, end_all, raise_if_failed
from launcher.remote import Remote
from launcher.run_record import RunRecord, RunRecords
from launcher.watch_cluster import watching

ALL_STOPPED = "stopped"


def follow_cluster(
    record: RunRecord, remotes: Mapping[str, Remote], records: RunRecords, progress: LiveProgress
) -> None:
    """Blocks until the run ends. Ctrl-C detaches: the cluster goes on. RankDied when a rank fails, all ended."""
    plan = record.plan
    progress.step("following; Ctrl-C detaches and leaves the cluster running")
    frozen_told: set[str] = set()
    with watching(plan) as watch:
        watch.open(remotes, from_log_end=True)
        try:
            while True:
                watch.pump(PUMP_S)
                ends = [node.end for node in watch.view.nodes.values() if node.end]
                if any(end["kind"] == ALL_STOPPED for end in ends):
                    typer.echo(f"run {plan.run_id} was stopped", err=True)
                    return
                for name, pids in watch.view.frozen().items():
                    if name not in frozen_told:
                        frozen_told.add(name)
                        limit_s = plan.limits.freeze_timeout_s
                        progress.step(
                            f"warning: {name}: pid {pids[0]} is stopped (SIGSTOP); the run ends after {limit_s:.0f} s of it."
                            f" Continue it: kill -CONT {pids[0]}"
                        )
                raise_if_failed(watch)
        except KeyboardInterrupt:
            typer.echo(
                f"detached; run {plan.run_id} goes on. See it: sparkctl status. End it: sparkctl down --run {plan.run_id}",
                err=True,
            )
        except RankDied as error:
            progress.failure(error)
            records.update(record, status="failed", note=str(error))
            end_all(plan, remotes, progress)
            raise

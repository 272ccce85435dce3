"""Stay with a serving cluster: a rank that dies or freezes is named, and the others are ended. Of several
groups the others serve on, as long as the router does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import typer

from launcher.cli.show_progress import LiveProgress
from launcher.cluster_view import ClusterView
from launcher.errors import RankDied, RunStopped
from launcher.launch_cluster import PUMP_S, SilenceWatch, end_all, raise_if_failed
from launcher.remote import Remote
from launcher.run_record import RunRecord, RunRecords
from launcher.watch_cluster import ClusterWatch, watching


@dataclass(slots=True, kw_only=True)
class _Followed:
    record: RunRecord
    watch: ClusterWatch
    silence: SilenceWatch
    frozen: set[str] = field(default_factory=set)


def follow_cluster(
    records_followed: Sequence[RunRecord],
    remotes: Mapping[str, Remote],
    records: RunRecords,
    progress: LiveProgress,
) -> None:
    """Blocks until nothing serves any more. Ctrl-C detaches: the cluster goes on. RankDied when a rank fails
    and no other group serves, all ended.
    """
    with ExitStack() as stack:
        alive: list[_Followed] = []
        for record in records_followed:
            watch = stack.enter_context(watching(record.plan))
            alive.append(_Followed(record=record, watch=watch, silence=SilenceWatch(watch, progress)))
        try:  # before it is offered: a Ctrl-C right after that line detaches
            progress.step("following; Ctrl-C detaches and leaves the cluster running")
            for one in alive:
                one.watch.open(remotes, from_log_end=True)
            while alive:
                _look(alive, remotes, records, progress)
        except KeyboardInterrupt:
            plan = records_followed[-1].plan
            typer.echo(detached_text(plan.deployment or plan.run_id), err=True)


def _look(
    alive: list[_Followed], remotes: Mapping[str, Remote], records: RunRecords, progress: LiveProgress
) -> None:
    """One round; what died or was stopped leaves `alive`, and where nothing serves any more all of it."""
    for one in list(alive):
        try:
            one.watch.pump(PUMP_S / len(alive))
            one.frozen = _tell_frozen(one.watch.view, one.frozen, progress)
            raise_if_failed(one.watch)
            one.silence.check()
        except RunStopped as stop:
            typer.echo(stop.message, err=True)
            alive.remove(one)
            if not _goes_on(alive):
                alive.clear()
                return
        except RankDied as error:
            alive.remove(one)
            if _goes_on(alive):
                _lose(one.record, error, remotes, records, progress)
                continue
            _end(one.record, alive, error, remotes, records, progress)
            raise


def _goes_on(alive: Sequence[_Followed]) -> bool:
    """The router and a group are enough to serve."""
    plans = [one.record.plan for one in alive]
    return any(plan.is_router for plan in plans) and any(not plan.is_router for plan in plans)


def _lose(
    record: RunRecord,
    error: RankDied,
    remotes: Mapping[str, Remote],
    records: RunRecords,
    progress: LiveProgress,
) -> None:
    try:
        progress.step(f"error: {error.node}: {error.message}\n  -> {error.hint}")
        records.update(record, status="failed", note=str(error))
    finally:  # also when whoever read our words has gone, or this machine's disk is full
        end_all(record.plan, remotes, progress)
    progress.step(f"{record.plan.part} is gone; the router asks the others, which serve on")


def _end(
    record: RunRecord,
    others: Sequence[_Followed],
    error: RankDied,
    remotes: Mapping[str, Remote],
    records: RunRecords,
    progress: LiveProgress,
) -> None:
    everything = [record, *(one.record for one in others)]
    try:
        progress.failure(error)
    finally:  # also when whoever read our words has gone, or this machine's disk is full
        try:
            for each in everything:
                records.update(each, status="failed", note=str(error))
        finally:
            for each in everything:
                end_all(each.plan, remotes, progress)


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

"""The main job: facts -> checks -> plan -> start -> first token.
Reports through `Progress`; prints nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from launcher.audit_run import require_effect
from launcher.call_node import Answer
from launcher.cluster_view import ClusterView
from launcher.deployment import Deployment, of_plan
from launcher.doctor.finding import Finding
from launcher.errors import (
    Interrupted,
    NodeUnreachable,
    NotReady,
    PreflightRefused,
    RankDied,
    RunStopped,
    SparkctlError,
    UsageError,
)
from launcher.execute_plan import start_nodes
from launcher.failure_report import describe_failure
from launcher.gather_facts import gather_facts, probes_for_deployment
from launcher.make_deployment import make_deployment, ports_differ
from launcher.make_plan import check_fit
from launcher.node_facts import NodeFacts
from launcher.plan import LaunchPlan, LockPlan
from launcher.preflight import find_problems
from launcher.recipe import Recipe
from launcher.remote import Remote
from launcher.run_on_all import Result, errors_of, group_by_reason, run_on_all
from launcher.run_record import RunRecord, RunRecords
from launcher.stop_cluster import not_ended, stop_nodes, stop_run_on
from launcher.topology import Topology
from launcher.watch_cluster import ClusterWatch, watching

Facts = Mapping[str, NodeFacts]

PUMP_S = 0.1
# After the first sign of a failure: time for the other nodes' signs to arrive, and then for the last log
# lines of those that ended.
SETTLE_S = 0.4
LAST_LINES_S = 1.2
GIVE_UP_S = 30.0


class Progress(Protocol):
    """What a launch tells while it goes on."""

    def step(self, text: str) -> None: ...

    def finding(self, finding: Finding) -> None: ...

    def cluster(self, views: Sequence[ClusterView], elapsed_s: float) -> None: ...

    def failure(self, error: SparkctlError) -> None: ...


@dataclass(slots=True)
class Stopwatch:
    """Seconds of each part of a launch, by name."""

    clock: Callable[[], float]
    seconds: dict[str, float] = field(default_factory=dict)
    _last_s: float = 0.0

    def __post_init__(self) -> None:
        self._last_s = self.clock()

    def lap(self, name: str) -> None:
        """A part that comes again, as the router's start after the groups', is added."""
        now_s = self.clock()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + now_s - self._last_s, 3)
        self._last_s = now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    record: RunRecord
    token: str
    view: ClusterView


def new_run_id(now: time.struct_time | None = None) -> str:
    """Time first, so that ids sort; four random hex digits against two launches in one second."""
    return f"{time.strftime('%Y%m%d-%H%M%S', now or time.localtime())}-{secrets.token_hex(2)}"


def require_facts(results: Mapping[str, Result[NodeFacts]]) -> dict[str, NodeFacts]:
    """Facts of every node, or the error of those that did not answer, grouped by reason."""
    errors = errors_of(results)
    if errors:
        first = next(iter(errors.values()))
        if len(errors) == 1:
            raise first
        groups = group_by_reason(errors)
        raise type(first)("\n".join(str(group) for group in groups), hint=first.hint) from first
    return {name: result.unwrap() for name, result in results.items()}


def prepare(recipe: Recipe, topology: Topology, remotes: Mapping[str, Remote], *, run_id: str | None,
            tell: Callable[[str], None] = lambda text: None,
            lock: LockPlan | None = None,
            values: Recipe | None = None) -> tuple[Deployment, Facts]:  # fmt: skip
    """Facts of all nodes and the plans made from them. Starts nothing. `run_id` None: a new one."""
    check_fit(recipe, topology)
    chosen = run_id or new_run_id()
    while not ports_differ(recipe, chosen):
        if run_id is not None:
            raise UsageError(
                f"--run-id must give every group ports of its own, got {run_id}",
                hint="leave it out, or take another one",
            )
        chosen = new_run_id()
    probes = probes_for_deployment(recipe, topology, run_id=chosen)
    facts = require_facts(gather_facts(remotes, probes, tell))
    return make_deployment(recipe, topology, facts, run_id=chosen, lock=lock, values=values), facts


def check(plan: LaunchPlan, facts: Facts, progress: Progress, *, skip: tuple[str, ...]) -> None:
    """Raises PreflightRefused with all refusals that were not skipped."""
    refuse(find_problems(plan, facts), progress, skip=skip)


def refuse(findings: Iterable[Finding], progress: Progress, *, skip: tuple[str, ...]) -> None:
    """Tell all findings; raises PreflightRefused with the refusals among them that were not skipped."""
    refusals = []
    for finding in findings:
        progress.finding(finding)
        if finding.level == "refuse" and finding.check in skip:
            progress.step(f"going on by --skip {finding.check}: {finding.node}: {finding.message}")
        elif finding.level == "refuse":
            refusals.append(finding)
    if refusals:
        first, more = refusals[0], refusals[1:]
        lines = [first.message]
        for item in more:  # the first one's hint comes last of all, also for those that share it
            lines.append(f"{item.node}: {item.message}")
            if item.hint != first.hint:
                lines.append(f"  -> {item.hint}")
        raise PreflightRefused("\n".join(lines), hint=first.hint, node=first.node)


def end_earlier_runs(facts: Facts, remotes: Mapping[str, Remote], progress: Progress) -> None:
    """`--replace`: end every live run on these nodes."""
    for run_id in sorted({run.run_id for own in facts.values() for run in own.live_runs}):
        progress.step(f"ending run {run_id}")
        run_on_all(list(remotes.values()), partial(_end_run, run_id, facts))


def _end_run(run_id: str, facts: Facts, remote: Remote) -> Answer:
    return stop_run_on(remote, facts[remote.node].paths["state"], run_id, memory_timeout_s=5.0)


def launch(deployment: Deployment, remotes: Mapping[str, Remote], records: RunRecords, progress: Progress,
           watch_time: Stopwatch, *, skip: tuple[str, ...] = ()) -> list[LaunchResult]:  # fmt: skip
    """Start every group and wait for a first token of each, then of the router. On any failure, Ctrl-C
    included, everything started is ended.
    """
    results = launch_together(deployment.groups, remotes, records, progress, watch_time, skip=skip)
    if deployment.router is None:
        return results
    try:
        before = (deployment.router,)
        return results + launch_together(before, remotes, records, progress, watch_time, skip=skip)
    except BaseException as error:
        for result in results:
            _note_failure(records, result.record, f"the router: {error}", watch_time)
            end_all(result.record.plan, remotes, progress)
        raise


def launch_together(plans: Sequence[LaunchPlan], remotes: Mapping[str, Remote], records: RunRecords,
                    progress: Progress, watch_time: Stopwatch, *,
                    skip: tuple[str, ...]) -> list[LaunchResult]:  # fmt: skip
    """Start all plans, then wait until each has given a token. Nothing of them is left on a failure."""
    noted = [
        RunRecord(plan=plan, status="starting", started_unix=time.time(), timings={}, skipped_checks=skip)
        for plan in plans
    ]
    for record in noted:
        records.save(record)
    try:
        # Also on disk before anything runs: a launcher that is killed here leaves a run that `down` can find.
        keys = [records.make_key(plan.run_id) if plan.api.needs_key else None for plan in plans]
        _start_all(plans, keys, remotes, progress)
        watch_time.lap("start_s")
        found = _first_tokens(plans, keys, remotes, records, progress, skip)
        watch_time.lap("engine_s")
    except KeyboardInterrupt as interrupt:
        for record in noted:
            _note_failure(records, record, "interrupted", watch_time)
        raise Interrupted(
            "interrupted before the cluster was ready: what had been started was ended",
            hint=f"make sure: sparkctl down --run {Deployment(plans=tuple(plans)).id}",
        ) from interrupt
    except BaseException as error:
        for record in noted:
            _note_failure(records, record, str(error) or type(error).__name__, watch_time)
        raise
    noted = [records.update(record, status="ready", timings=dict(watch_time.seconds)) for record in noted]
    records.remove_old()
    return [
        LaunchResult(record=record, token=token, view=view)
        for record, (view, token) in zip(noted, found, strict=True)
    ]


def _start_all(plans: Sequence[LaunchPlan], keys: Sequence[str | None], remotes: Mapping[str, Remote],
               progress: Progress) -> None:  # fmt: skip
    """A plan whose start fails has ended what it started; those before it are ended here."""
    started: list[LaunchPlan] = []
    try:
        for plan, key in zip(plans, keys, strict=True):
            progress.step(f"starting {plan.part or f'{len(plan.nodes)} node(s)'}, run {plan.run_id}")
            start_nodes(plan, of_plan(plan, remotes), token=secrets.token_hex(16), api_key=key)
            started.append(plan)
    except BaseException:
        for plan in started:
            end_all(plan, remotes, progress)
        raise


def _first_tokens(plans: Sequence[LaunchPlan], keys: Sequence[str | None], remotes: Mapping[str, Remote],
                  records: RunRecords, progress: Progress,
                  skip: tuple[str, ...]) -> list[tuple[ClusterView, str]]:  # fmt: skip
    """From here on processes run: whatever goes wrong, they are ended before the error goes on."""
    try:
        with ExitStack() as stack:
            watches = [stack.enter_context(watching(plan)) for plan in plans]
            for watch, plan, key in zip(watches, plans, keys, strict=True):
                records.close_superseded(plan)
                watch.open(remotes)
                limit_s = plan.limits.ready_timeout_s
                watch.await_token(remotes[plan.head.name], api_key=key, timeout_s=limit_s)
            tokens = await_ready(watches, progress)
        for plan in plans:
            require_effect(plan, of_plan(plan, remotes), skip=skip)
        return [(watch.view, token) for watch, token in zip(watches, tokens, strict=True)]
    except BaseException as error:
        if isinstance(error, SparkctlError):
            progress.failure(error)
        for plan in plans:
            end_all(plan, remotes, progress)
        raise


def _note_failure(records: RunRecords, record: RunRecord, note: str, watch_time: Stopwatch) -> None:
    records.update(record, status="failed", note=note, timings=dict(watch_time.seconds))
    records.forget_key(record.run_id)


def await_ready(watches: Sequence[ClusterWatch], progress: Progress) -> list[str]:
    """The first token of each, once every rank's process lives too.
    Raises RankDied, RunStopped or NotReady.
    """
    clock = watches[0].clock
    started_s = clock()
    silences = [SilenceWatch(watch, progress) for watch in watches]
    while True:
        for watch in watches:
            watch.pump(PUMP_S / len(watches))
        now_s = clock()
        progress.cluster([watch.view for watch in watches], now_s - started_s)
        for watch, silence in zip(watches, silences, strict=True):
            raise_if_failed(watch)
            silence.check()
        waiting = [watch for watch in watches if not _is_ready(watch, now_s)]
        if not waiting:
            return [str(watch.token["token"]) for watch in watches if watch.token is not None]
        for watch in waiting:
            _raise_if_late(watch, now_s - started_s)


def _is_ready(watch: ClusterWatch, now_s: float) -> bool:
    return watch.token is not None and watch.view.all_ranks_live(now_s)


def _raise_if_late(watch: ClusterWatch, waited_s: float) -> None:
    plan = watch.view.plan
    limit_s = plan.limits.ready_timeout_s
    if waited_s > limit_s:
        raise NotReady(
            f"{plan.part or 'the cluster'} must generate a token within {limit_s:.0f} s, it did not: "
            f"{watch.token_error or 'no answer'}",
            hint=f"sparkctl logs --run {plan.run_id}; or raise limits.ready_timeout_s in the recipe",
        )


def end_all(plan: LaunchPlan, remotes: Mapping[str, Remote], progress: Progress) -> None:
    """End the run everywhere after a failure that has been told; a node that cannot be reached is named."""
    started_s = time.monotonic()
    left = not_ended(stop_nodes(plan, of_plan(plan, remotes), refuse_start=True))
    for name, why in left.items():
        progress.step(f"{name} was not ended: {why}; it ends by itself when it misses its peers")
    where = "on the nodes that answer " if left else ""
    progress.step(f"run {plan.run_id} is ended {where}({time.monotonic() - started_s:.1f} s); logs are kept")


def raise_if_failed(watch: ClusterWatch) -> None:
    """RankDied when any node failed, RunStopped when somebody stopped the run.

    Waits a moment so that the node where it began is named.
    """
    if watch.view.first_failure(watch.clock()) is None:
        return
    seen_s = watch.clock()
    while (waited_s := watch.clock() - seen_s) < LAST_LINES_S:
        if waited_s >= SETTLE_S and all(node.told_all for node in watch.view.nodes.values() if node.end):
            break
        watch.pump(PUMP_S)
    kinds = {node.end["kind"]: node.name for node in watch.view.nodes.values() if node.end}
    if "stopped" in kinds:
        raise RunStopped(
            f"run {watch.view.plan.run_id} was stopped by somebody else"
            " (sparkctl down, or a signal to its supervisor)",
            hint="sparkctl up",
            node=kinds["stopped"],
        )
    report = describe_failure(watch.view, watch.clock())
    assert report is not None
    raise RankDied(report.message, hint=report.hint, node=report.node)


class SilenceWatch:
    """Tells once about each node that we hear nothing of;
    gives up when that is so for all of them, for long.
    """

    def __init__(self, watch: ClusterWatch, progress: Progress) -> None:
        self._watch = watch
        self._progress = progress
        self._told: set[str] = set()

    def check(self) -> None:
        """NodeUnreachable when no node answers any more. Ends nothing: the cluster may be well."""
        view, now_s = self._watch.view, self._watch.clock()
        silent = view.silent(now_s)
        for name, why in silent.items():
            if name not in self._told:
                self._progress.step(
                    f"warning: {name}: no contact ({why}); its peers still hear it, trying again"
                )
        self._told = set(silent)
        if len(silent) == len(view.nodes) and all(
            now_s - node.last_beat_s > GIVE_UP_S for node in view.nodes.values()
        ):
            raise NodeUnreachable(
                f"no node of run {view.plan.run_id} was heard for {GIVE_UP_S:.0f} s:"
                f" {next(iter(silent.values()))}",
                hint=f"when the network is back: sparkctl status --run {view.plan.run_id}",
            )

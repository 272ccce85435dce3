"""`sparkctl up`: start a cluster and say "ready" when a token has really been generated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import (
    AcceptKeysOption,
    JsonOption,
    NodesOption,
    PortOption,
    ProfileOption,
    RecipeOption,
    TopologyOption,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.choose_inputs import Inputs
    from launcher.cli.show_progress import LiveProgress
    from launcher.deployment import Deployment
    from launcher.launch_cluster import Facts, Stopwatch
    from launcher.remote import Remote
    from launcher.run_record import RunRecords
    from launcher.topology import Node


def up(
    nodes: NodesOption = None,
    recipe: RecipeOption = None,
    profile: ProfileOption = None,
    topology: TopologyOption = None,
    port: PortOption = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Carry out this plan, word for word.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="End an earlier run on these nodes first.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Stay and watch; Ctrl-C leaves the cluster running.")
    ] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="CHECK", help="Start although this check refuses (recorded)."),
    ] = None,
    unlocked: Annotated[
        bool,
        typer.Option(
            "--unlocked", help="Start although something differs from the recipe's lock (recorded)."
        ),
    ] = False,
    no_api_key: Annotated[
        bool, typer.Option("--no-api-key", help="Serve without a key although the API is not on loopback.")
    ] = False,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Start a cluster: connect, check, start every node, wait for a first token.

    \b
    sparkctl up --nodes 3                      three nodes on this machine: a small V4.1, real SGLang on CPU
    sparkctl up --recipe v41-flash-3x          your three Sparks (~/.config/sparkctl/topology.yaml)
    sparkctl up --plan plan.json               exactly what `sparkctl plan --output plan.json` wrote
    """
    import signal
    import time

    from launcher.choose_inputs import Inputs, choose_inputs
    from launcher.cli.follow import detached_text, follow_cluster
    from launcher.cli.show_progress import LiveProgress
    from launcher.cli.show_run import show_ready
    from launcher.connect import SshOptions, connect_all
    from launcher.deployment import deployment_from_json
    from launcher.doctor.check_names import known_checks
    from launcher.errors import Interrupted
    from launcher.launch_cluster import Stopwatch, launch
    from launcher.plan_groups import nodes_to_reach
    from launcher.preflight import LOCK_CHECK
    from launcher.run_record import RunRecords

    # A launch that is told to end (kill, a service manager) ends what it started, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stopwatch = Stopwatch(clock=time.monotonic)
    records = RunRecords()
    source: Deployment | Inputs
    if plan is not None:
        _refuse_with_plan(nodes, recipe, profile, topology, port, no_api_key)
        source = deployment_from_json(_read(plan), source=str(plan))
        targets: tuple[Node, ...] = source.nodes
    else:
        source = _with_key_rule(
            choose_inputs(recipe=recipe, profile=profile, topology=topology, nodes=nodes, port=port),
            no_api_key,
        )
        targets = nodes_to_reach(source.recipe, source.topology)
    skipped = known_checks((*(skip or ()), *((LOCK_CHECK,) if unlocked else ())))
    with (
        LiveProgress() as progress,
        connect_all(targets, SshOptions(accept_new_host_keys=accept_new_host_keys)) as remotes,
    ):
        made, facts = _make_plan(source, remotes, progress, records if replace else None)
        stopwatch.lap("plan_s")
        inputs = source if isinstance(source, Inputs) else None
        _check_all(made, inputs, facts, remotes, progress, stopwatch, skipped)
        results = launch(made, remotes, records, progress, stopwatch, skip=skipped)
        progress.close()
        try:
            show_ready(results, remotes, records, as_json=json)
        except KeyboardInterrupt:
            typer.echo(detached_text(made.id), err=True)
            raise typer.Exit(Interrupted.exit_code) from None
        if follow:
            follow_cluster([result.record for result in results], remotes, records, progress)


def _check_all(
    made: Deployment,
    inputs: Inputs | None,
    facts: Facts,
    remotes: Mapping[str, Remote],
    progress: LiveProgress,
    stopwatch: Stopwatch,
    skip: tuple[str, ...],
) -> None:
    """Everything that would fail later; each group is asked as the cluster that it is."""
    import time

    from launcher.deployment import of_plan
    from launcher.doctor.run_doctor import collective_before_launch, quick_findings
    from launcher.launch_cluster import check, refuse
    from launcher.registry.ask_nodes import lock_findings

    for plan in made.plans:
        check(plan, of_plan(plan, facts), progress, skip=skip)
    for plan in made.groups:
        own_facts, own = of_plan(plan, facts), of_plan(plan, remotes)
        refuse(quick_findings(plan, inputs, own_facts, own, clock=time.time), progress, skip=skip)
        refuse(lock_findings(plan, own), progress, skip=skip)
    stopwatch.lap("doctor_s")
    for plan in made.groups:
        probed = collective_before_launch(plan, of_plan(plan, remotes), skip=skip, tell=progress.step)
        refuse(probed, progress, skip=skip)
    stopwatch.lap("collective_s")


def _make_plan(
    source: Deployment | Inputs,
    remotes: Mapping[str, Remote],
    progress: LiveProgress,
    replaced: RunRecords | None,
) -> tuple[Deployment, Facts]:
    """The plan to carry out, and fresh facts of its nodes. With the records of what may be `replaced`,
    earlier runs are ended on the way.
    """
    from launcher.deployment import Deployment
    from launcher.gather_facts import gather_facts, probes_for_plan
    from launcher.launch_cluster import end_earlier_runs, prepare, require_facts
    from launcher.small_models import make_what_is_missing

    facts: Facts
    if isinstance(source, Deployment):
        first = source.plans[0]
        progress.step(f"carrying out plan {source.id}: recipe {first.recipe} on topology {first.topology}")
        probes = tuple(probe for plan in source.plans for probe in probes_for_plan(plan))
        made, facts = source, require_facts(gather_facts(remotes, probes, progress.step))
    else:
        progress.step(f"{source.how}; asking {len(remotes)} node(s)")
        if source.is_embedded:
            make_what_is_missing(source.recipe, source.topology.nodes[0], progress.step)
        made, facts = prepare(
            source.recipe,
            source.topology,
            remotes,
            run_id=None,
            tell=progress.step,
            lock=source.lock,
            values=source.values,
        )
    if replaced is not None and any(own.live_runs for own in facts.values()):
        end_earlier_runs(facts, remotes, progress)
        _end_other_groups(facts, replaced, progress)
        probes = tuple(probe for plan in made.plans for probe in probes_for_plan(plan))
        facts = require_facts(gather_facts(remotes, probes))
    return made, facts


def _end_other_groups(facts: Facts, records: RunRecords, progress: LiveProgress) -> None:
    """A group that was replaced leaves its router, and groups on other nodes: they go with it."""
    from launcher.connect import SshOptions
    from launcher.end_run import end_run
    from launcher.errors import NoSuchRun
    from launcher.plan_groups import whole_of
    from launcher.run_record import router_first

    ended = {run.run_id for own in facts.values() for run in own.live_runs}
    for deployment in sorted({whole_of(run_id) for run_id in ended} - ended):
        try:
            runs = records.choose_all(deployment)
        except NoSuchRun:
            continue  # another machine started it
        for record in router_first(runs):
            progress.step(f"ending run {record.run_id}, which belongs to it")
            end_run(record, records, SshOptions())


def _with_key_rule(inputs: Inputs, no_api_key: bool) -> Inputs:
    """An API that others can reach has a key,
    unless the command line says otherwise: a recipe alone cannot.
    """
    from dataclasses import replace

    from launcher.errors import UsageError

    server = inputs.recipe.server
    if not server.is_loopback and inputs.recipe.parallelism.groups > 1 and not no_api_key:
        raise UsageError(
            f"server.host must be a loopback address for several groups, got {server.host}: the router has"
            f" no key (recipe {inputs.recipe.name})",
            hint="set server.host: 127.0.0.1 and take the tunnel that `up` prints,"
            " or confirm it: sparkctl up --no-api-key",
        )
    if server.is_loopback or (server.api_key == "auto" and not no_api_key):
        return inputs
    if not no_api_key:
        raise UsageError(
            f"an API on {server.host} must have a key, and recipe {inputs.recipe.name} says"
            " server.api_key: none",
            hint="remove that line, or confirm it: sparkctl up --no-api-key",
        )
    open_server = server.model_copy(update={"api_key": "none"})
    return replace(inputs, recipe=inputs.recipe.model_copy(update={"server": open_server}))


def _refuse_with_plan(*given: object) -> None:
    from launcher.errors import UsageError

    if any(given):
        raise UsageError(
            "--plan must stand alone: the plan already says nodes, recipe, topology, port and key",
            hint="sparkctl up --plan FILE, or sparkctl plan --output FILE with those options",
        )


def _read(path: Path) -> str:
    from launcher.errors import UsageError

    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the plan {path} cannot be read: {error}", hint="sparkctl plan --output plan.json"
        ) from error

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
    from launcher.launch_cluster import Facts
    from launcher.plan import LaunchPlan
    from launcher.remote import Remote
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
    from launcher.doctor.check_names import known_checks
    from launcher.doctor.run_doctor import collective_before_launch, quick_findings
    from launcher.errors import Interrupted
    from launcher.launch_cluster import Stopwatch, check, launch, refuse
    from launcher.plan import plan_from_json
    from launcher.preflight import LOCK_CHECK
    from launcher.registry.ask_nodes import lock_findings
    from launcher.run_record import RunRecords

    # A launch that is told to end (kill, a service manager) ends what it started, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stopwatch = Stopwatch(clock=time.monotonic)
    records = RunRecords()
    source: LaunchPlan | Inputs
    if plan is not None:
        _refuse_with_plan(nodes, recipe, profile, topology, port, no_api_key)
        source = plan_from_json(_read(plan), source=str(plan))
        targets: tuple[Node, ...] = tuple(node.node for node in source.nodes)
    else:
        source = _with_key_rule(
            choose_inputs(recipe=recipe, profile=profile, topology=topology, nodes=nodes, port=port),
            no_api_key,
        )
        targets = source.topology.nodes
    skipped = known_checks((*(skip or ()), *((LOCK_CHECK,) if unlocked else ())))
    with (
        LiveProgress() as progress,
        connect_all(targets, SshOptions(accept_new_host_keys=accept_new_host_keys)) as remotes,
    ):
        made, facts = _make_plan(source, remotes, progress, replace=replace)
        stopwatch.lap("plan_s")
        check(made, facts, progress, skip=skipped)
        inputs = source if isinstance(source, Inputs) else None
        refuse(quick_findings(made, inputs, facts, remotes, clock=time.time), progress, skip=skipped)
        refuse(lock_findings(made, remotes), progress, skip=skipped)
        stopwatch.lap("doctor_s")
        probed = collective_before_launch(made, remotes, skip=skipped, tell=progress.step)
        refuse(probed, progress, skip=skipped)
        stopwatch.lap("collective_s")
        result = launch(made, remotes, records, progress, stopwatch, skip=skipped)
        progress.close()
        try:
            show_ready(result, remotes, records, as_json=json)
        except KeyboardInterrupt:
            typer.echo(detached_text(made.run_id), err=True)
            raise typer.Exit(Interrupted.exit_code) from None
        if follow:
            follow_cluster(result.record, remotes, records, progress)


def _make_plan(
    source: LaunchPlan | Inputs, remotes: Mapping[str, Remote], progress: LiveProgress, *, replace: bool
) -> tuple[LaunchPlan, Facts]:
    """The plan to carry out, and fresh facts of its nodes. With `replace`, earlier runs are ended on the
    way.
    """
    from launcher.gather_facts import gather_facts, probes_for_plan
    from launcher.launch_cluster import end_earlier_runs, new_run_id, prepare, require_facts
    from launcher.plan import LaunchPlan
    from launcher.small_models import make_what_is_missing

    facts: Facts
    if isinstance(source, LaunchPlan):
        progress.step(
            f"carrying out plan {source.run_id}: recipe {source.recipe} on topology {source.topology}"
        )
        made, facts = source, require_facts(gather_facts(remotes, probes_for_plan(source), progress.step))
    else:
        progress.step(f"{source.how}; asking {len(remotes)} node(s)")
        if source.is_embedded:
            make_what_is_missing(source.recipe, source.topology.nodes[0], progress.step)
        made, facts = prepare(
            source.recipe,
            source.topology,
            remotes,
            run_id=new_run_id(),
            tell=progress.step,
            lock=source.lock,
            values=source.values,
        )
    if replace and any(own.live_runs for own in facts.values()):
        end_earlier_runs(facts, remotes, progress)
        facts = require_facts(gather_facts(remotes, probes_for_plan(made)))
    return made, facts


def _with_key_rule(inputs: Inputs, no_api_key: bool) -> Inputs:
    """An API that others can reach has a key, unless the command line says otherwise: a recipe alone
    cannot.
    """
    from dataclasses import replace

    from launcher.errors import UsageError

    server = inputs.recipe.server
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

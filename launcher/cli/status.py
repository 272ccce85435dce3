"""`sparkctl status`: what each node does, and whether the head really generates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, RunOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.cluster_status import ClusterStatus
    from launcher.dashboard.history import Figures
    from launcher.run_record import RunRecords

EXIT_NOT_SERVING = 6


def status(
    run: RunOption = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="List every run that this machine remembers.")
    ] = False,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Tell serving, loading, frozen, dead or orphaned for each node, with a timed generated token.

    Exit status 0 only when the cluster serves, and of several groups each one and their router.
    """
    import json as json_module

    from launcher.cluster_status import as_json, read_status, worst_of
    from launcher.connect import SshOptions
    from launcher.errors import UsageError
    from launcher.run_record import RunRecords

    if all_runs and run is not None:
        raise UsageError("--all must stand without --run, got both", hint=f"sparkctl status --run {run[:80]}")
    records = RunRecords()
    if all_runs:
        _list_runs(records, as_json=json)
        return
    chosen = records.choose_all(run)
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    found = [read_status(record, records.read_key(record.run_id), options) for record in chosen]
    verdict = worst_of({one.verdict for one in found})
    deployment = chosen[0].plan.deployment if len(found) > 1 else None
    if json and deployment:
        runs = [as_json(one) for one in found]
        typer.echo(json_module.dumps({"deployment": deployment, "verdict": verdict, "runs": runs}, indent=2))
    elif json:
        typer.echo(json_module.dumps(as_json(found[0]), indent=2))
    else:
        typer.echo(describe_groups(deployment, found) if deployment else describe_status(found[0]))
    if verdict != "serving":
        raise typer.Exit(EXIT_NOT_SERVING)


def _list_runs(records: RunRecords, *, as_json: bool) -> None:
    import json as json_module

    listed = records.load_readable()
    for run_id, error in records.unreadable().items():
        typer.echo(f"warning: {run_id}: {error.message}\n  -> {error.hint}", err=True)
    if as_json:
        rows = [
            {
                "run_id": item.run_id,
                "status": item.status,
                "recipe": item.plan.recipe,
                "nodes": len(item.plan.nodes),
                "note": item.note,
            }
            for item in listed
        ]
        typer.echo(json_module.dumps(rows, indent=2))
        return
    if not listed:
        typer.echo("no run was started from this machine; start one: sparkctl up --nodes 3")
    for item in listed:
        note = f"  {item.note.splitlines()[0][:100]}" if item.note else ""
        typer.echo(
            f"{item.run_id}  {item.status:8}  {item.plan.recipe} on {len(item.plan.nodes)} node(s){note}"
        )


def describe_groups(deployment: str, found: Sequence[ClusterStatus]) -> str:
    """Groups and their router as one: which of them does not serve stands in the first line."""
    bad = [f"{one.part} {one.verdict}" for one in found if one.verdict != "serving"]
    lines = [f"run {deployment} ({found[0].recipe}): {', '.join(bad) or 'serving'}"]
    for one in found:
        lines += [f"  {line}" for line in describe_status(one, advise=False).splitlines()]
    if bad and found[-1].verdict == "serving":
        lines.append("  the router answers from the groups that serve")
    if any(one.verdict == "loading" for one in found):
        lines.append(f"  -> sparkctl logs -f --run {deployment}")
    elif bad:
        lines.append(f"  -> sparkctl down --run {deployment}, then sparkctl up")
    return "\n".join(lines)


def describe_status(found: ClusterStatus, *, advise: bool = True) -> str:
    width = max(len(node.name) for node in found.nodes)
    part = f"{found.part}, " if found.part else ""
    lines = [f"{part}run {found.run_id} ({found.recipe}): {found.verdict}"]
    for node in found.nodes:
        detail = f"  {node.detail}" if node.detail else ""
        ranks = f"  rank {','.join(map(str, node.ranks))}" if node.ranks else ""
        lines.append(f"  {node.name.ljust(width)}{ranks}  {node.status}{detail}")
    if found.probe and "token" in found.probe:
        lines.append(
            f"  token {found.probe['token']!r} generated in {found.probe['seconds'] * 1000:.0f} ms;"
            f" {found.url}"
        )
    elif found.probe:
        lines.append(f"  no token: {found.probe['failed']}")
    if found.engine:
        lines.append("  engine  " + ", ".join(f"{name} {value}" for name, value in found.engine.items()))
    if found.metrics:
        lines.append(f"  load    {describe_figures(found.metrics)}")
    if found.speculation:
        from launcher.spec_figures import describe_spec

        lines += [f"  drafts  {line}" for line in describe_spec(found.speculation)]
    if found.metrics_problem:
        lines.append(f"  load    not measured: {found.metrics_problem}")
    if advise and found.verdict != "serving":
        lines.append(f"  -> {_next_command(found)}")
    return "\n".join(lines)


def describe_figures(figures: Figures) -> str:
    """One line; a figure that the engine does not give is named as such."""

    def tell(name: str, value: float | None, form: str) -> str:
        return f"{name} not measured" if value is None else f"{name} {format(value, form)}"

    parts = [
        tell("tokens/s", figures.tokens_per_s, ".1f"),
        tell("tokens/step", figures.tokens_per_step, ".2f"),
        tell("KV in use", figures.kv_usage, ".1%"),
        tell("running", figures.running, ".0f"),
        tell("waiting", figures.queued, ".0f"),
    ]
    if figures.engram_hit_share is not None:
        parts.append(tell("Engram hits", figures.engram_hit_share, ".1%"))
    return ", ".join(parts)


def _next_command(found: ClusterStatus) -> str:
    if found.verdict == "loading":
        return f"sparkctl logs -f --run {found.run_id}"
    if all(node.status == "dead" for node in found.nodes):
        return "sparkctl up"
    return f"sparkctl down --run {found.run_id}, then sparkctl up"

"""`sparkctl status`: what each node does, and whether the head really generates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, RunOption

if TYPE_CHECKING:
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

    Exit status 0 only when the cluster serves.
    """
    import json as json_module

    from launcher.cluster_status import as_json, read_status
    from launcher.connect import SshOptions
    from launcher.errors import UsageError
    from launcher.run_record import RunRecords

    if all_runs and run is not None:
        raise UsageError("--all must stand without --run, got both", hint=f"sparkctl status --run {run[:80]}")
    records = RunRecords()
    if all_runs:
        _list_runs(records, as_json=json)
        return
    record = records.choose(run)
    key = records.read_key(record.run_id)
    found = read_status(record, key, SshOptions(accept_new_host_keys=accept_new_host_keys))
    if json:
        typer.echo(json_module.dumps(as_json(found), indent=2))
    else:
        typer.echo(describe_status(found))
    if found.verdict != "serving":
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


def describe_status(found: ClusterStatus) -> str:
    width = max(len(node.name) for node in found.nodes)
    lines = [f"run {found.run_id} ({found.recipe}): {found.verdict}"]
    for node in found.nodes:
        detail = f"  {node.detail}" if node.detail else ""
        lines.append(
            f"  {node.name.ljust(width)}  rank {','.join(map(str, node.ranks))}  {node.status}{detail}"
        )
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
    if found.verdict != "serving":
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

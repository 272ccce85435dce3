"""`sparkctl logs`: the engine's log of all nodes, merged, and followed."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import AcceptKeysOption, RunOption


def logs(
    run: RunOption = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="Only this node (may be repeated).")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-l", min=0, help="Last lines of each node; 0 for all.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as the logs grow, until the run ends.")
    ] = False,
    supervisor: Annotated[
        bool, typer.Option("--supervisor", help="The supervisor's own log instead.")
    ] = False,
    accept_new_host_keys: AcceptKeysOption = False,
    json: Annotated[bool, typer.Option("--json", help='One JSON object a line: {"node", "line"}.')] = False,
) -> None:
    """Print the logs of all nodes, each line after its node's name. API keys in them are masked."""
    import json as json_module

    from launcher.connect import SshOptions
    from launcher.merge_logs import merge_logs
    from launcher.run_record import RunRecords

    records = RunRecords()
    chosen = records.choose_all(run)
    keys = [records.read_key(record.run_id) for record in chosen]
    plans = [record.plan for record in chosen]
    merged = merge_logs(
        plans,
        SshOptions(accept_new_host_keys=accept_new_host_keys),
        nodes=tuple(node or ()),
        lines=lines,
        follow=follow,
        name="supervisor.log" if supervisor else "engine.log",
        secrets=tuple(filter(None, keys)),
    )
    width = max(len(item.name) for plan in plans for item in plan.nodes)
    for item in merged:
        if json:
            typer.echo(json_module.dumps({"node": item.node, "line": item.line}))
        else:
            typer.echo(f"{item.node.ljust(width)} | {item.line}")

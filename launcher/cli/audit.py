"""`sparkctl audit`: whether every rank runs as the plan says."""

from __future__ import annotations

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, RunOption


def audit(
    run: RunOption = None, accept_new_host_keys: AcceptKeysOption = False, json: JsonOption = False
) -> None:
    """Compare the plan of a run with what its ranks report and its head says. Exit status 6 on a difference.

    \b
    sparkctl audit                 the run that is open
    sparkctl audit --run RUN_ID    another one
    """
    import json as json_module
    from dataclasses import asdict

    from launcher.audit_plan import expects_reports
    from launcher.audit_run import audit_run
    from launcher.connect import SshOptions, connect_all
    from launcher.errors import AuditFailed
    from launcher.run_record import RunRecords

    records = RunRecords()
    record = records.choose(run)
    plan = record.plan
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    with connect_all([node.node for node in plan.nodes], options) as remotes:
        found = audit_run(plan, remotes, records.read_key(plan.run_id))
    if json:
        rows = {"run_id": plan.run_id, "differences": [asdict(item) for item in found]}
        typer.echo(json_module.dumps(rows, indent=2))
    else:
        for node in plan.nodes:
            own = [item for item in found if item.node == node.name]
            ranks = ",".join(map(str, node.ranks))
            verdict = f"{len(own)} difference(s)" if own else "as planned"
            typer.echo(f"{node.name}  rank {ranks}  {verdict}")
            for item in own:
                typer.echo(f"  {item}\n    next: {item.next_step}")
        if not expects_reports(plan):
            typer.echo("the engine runs without sparkctl's plugin: only the head's own words were compared")
    if found:
        raise typer.Exit(AuditFailed.exit_code)

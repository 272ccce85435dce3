"""`sparkctl down`: end a run on all of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, RunOption

if TYPE_CHECKING:
    from launcher.end_run import DownResult


def down(
    run: RunOption = None,
    all_runs: Annotated[bool, typer.Option("--all", help="End every run that this machine started.")] = False,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """End a run: exactly its own processes on every node, then wait until their memory is back.

    Groups behind a router are one run here, named by the id that `up` printed; --run ID-g2 ends one group.
    Works from any terminal of this machine, also after it was rebooted. Doing it twice is fine.
    """
    import json as json_module

    from launcher.connect import SshOptions
    from launcher.end_run import end_run
    from launcher.errors import NodeUnreachable, UsageError
    from launcher.run_record import RunRecords, router_first

    if all_runs and run is not None:
        raise UsageError("--all must stand without --run, got both", hint=f"sparkctl down --run {run[:80]}")
    records = RunRecords()
    if all_runs or (run is None and not records.open_records()):
        chosen = records.open_records()
    else:
        chosen = records.choose_all(run)
    if not chosen:
        if records.run_ids() and not all_runs:
            chosen = records.choose_all(None)  # ended already: make sure that nothing of it is left
        elif json:
            typer.echo("[]")
            return
        else:
            typer.echo("nothing to end: this machine has no open run")
            return
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    results = [end_run(record, records, options) for record in router_first(chosen)]
    if json:
        typer.echo(json_module.dumps([result.as_dict() for result in results], indent=2))
    else:
        for result in results:
            typer.echo(_describe(result))
    failed = [result for result in results if result.errors or result.left]
    if failed:
        problems = "; ".join(
            f"{node}: {text}" for result in failed for node, text in result.problems().items()
        )
        raise NodeUnreachable(
            f"some nodes may still run: {problems}",
            hint=f"when they can be reached again: sparkctl down --run {failed[0].run_id}",
        )


def _describe(result: DownResult) -> str:
    lines = [f"run {result.run_id}: ended in {result.seconds:.1f} s"]
    for node, answer in result.answers.items():
        count = len(answer["ended"])
        text = f"{count} process(es) ended" if count else "nothing was running"
        if answer["ended"] and not answer.get("memory_back", True):
            have, want = answer["memory_available_bytes"] >> 20, answer["memory_wanted_bytes"] >> 20
            text += f"; memory is not back yet: {have} MiB available of {want} MiB before the start"
        lines.append(f"  {node}: {text}")
    lines += [f"  {node}: {text}" for node, text in result.problems().items()]
    return "\n".join(lines)

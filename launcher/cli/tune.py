"""`sparkctl tune spec`: what a step of each width costs, measured on the running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, RunOption

if TYPE_CHECKING:
    from launcher.tune_spec import TunedTable

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Measure on the running cluster what its engine then decides from.",
)


@app.callback()
def _group() -> None:
    """Keeps `spec` a word of its own: a single command would take the group's place."""


@app.command("spec")
def spec(
    run: RunOption = None,
    max_batch: Annotated[
        int | None, typer.Option("--max-batch", metavar="N", min=1, help="Largest batch that is timed.")
    ] = None,
    context_tokens: Annotated[
        int, typer.Option("--context-tokens", metavar="N", min=1, help="Length of the prompts.")
    ] = 256,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Passes over all batches and widths.")] = 3,
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Take the medians although the nodes were busy.")
    ] = False,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=1, help="Limit for all steps.")] = 1800.0,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Time a step of each batch and width, and bring the table to every node.

    \b
    sparkctl tune spec                 of a recipe with extensions.dspark.width: auto; nothing else may ask
    sparkctl down; sparkctl up ...     the engine reads a table at its start
    """
    import json as json_module
    from dataclasses import asdict

    from launcher.connect import SshOptions, connect_all
    from launcher.run_record import RunRecords
    from launcher.tune_spec import TuneOptions, table_path, tune_spec

    records = RunRecords()
    plan = records.choose(run).plan
    for node in plan.nodes:
        table_path(node)  # refuses before anything is connected
    options = TuneOptions(
        context_tokens=context_tokens,
        max_batch=max_batch,
        rounds=rounds,
        timeout_s=timeout_s,
        allow_busy=allow_busy,
    )
    ssh = SshOptions(accept_new_host_keys=accept_new_host_keys)
    with connect_all([node.node for node in plan.nodes], ssh) as remotes:
        table = tune_spec(
            plan, remotes, records.read_key(plan.run_id), options, lambda line: typer.echo(line, err=True)
        )
    if json:
        typer.echo(json_module.dumps({"run_id": plan.run_id, **asdict(table)}, indent=2))
    else:
        typer.echo(describe(table))


def describe(table: TunedTable) -> str:
    widths = range(1, len(table.verify_ns[0]))
    lines = ["batch    draft    plain" + "".join(f"  width {width}" for width in widths) + "   (ms a step)"]
    for batch, row, draft in zip(table.batches, table.verify_ns, table.draft_ns, strict=True):
        steps = "".join(f"{(row[width] + draft) / 1e6:9.2f}" for width in widths)
        lines.append(f"{batch:5d}{draft / 1e6:9.2f}{row[0] / 1e6:9.2f}{steps}")
    places = ", ".join(sorted(set(table.path.values())))
    lines.append(f"{table.hash} on {len(table.path)} node(s): {places}")
    lines.append("start again to use it: sparkctl down, then sparkctl up")
    return "\n".join(lines)

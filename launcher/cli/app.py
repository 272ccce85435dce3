"""The `sparkctl` command. Turns errors into text and exit codes; the verbs are in their own modules.

Nothing heavy is imported here or at the top of a verb's module: `sparkctl --help` must be quick.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from launcher.cli import (
    audit,
    bench,
    dashboard,
    doctor,
    down,
    engram,
    fit,
    install,
    logs,
    plan,
    predict,
    recipe,
    results,
    status,
    tiny_model,
    topology,
    tune,
    up,
    weights,
)
from launcher.cli.run_verb import Verbs, unexpected
from launcher.cli.show_error import print_error_as_json, show_error
from launcher.errors import SparkctlError

app = typer.Typer(
    name="sparkctl",
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    help="""Serve DeepSeek-V4.1-Flash on 2, 3 or 4 DGX Sparks with SGLang, from one command.

\b
Without any Spark:   sparkctl up --nodes 3     three nodes on this machine, real SGLang on CPU
On your Sparks:      sparkctl topology init --nodes spark-1,spark-2,spark-3
                     sparkctl up --recipe v41-flash-3x
Then:                sparkctl status | logs -f | down
""",
)

app.command("up")(up.up)
app.command("down")(down.down)
app.command("status")(status.status)
app.command("audit")(audit.audit)
app.command("logs")(logs.logs)
app.command("dashboard")(dashboard.dashboard)
app.command("bench")(bench.bench)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.add_typer(install.app, name="install")
app.add_typer(engram.app, name="engram")
app.add_typer(recipe.app, name="recipe")
app.add_typer(results.app, name="results")
app.add_typer(topology.app, name="topology")
app.add_typer(tune.app, name="tune")
app.add_typer(weights.app, name="weights")
app.command("tiny-model")(tiny_model.tiny_model)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(version("sparkctl"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Console entry point: every known error ends in one message, one hint and its exit code."""
    try:
        app(standalone_mode=True)
    except SparkctlError as error:
        if not error.shown:
            show_error(error)
        if "--json" in sys.argv:
            print_error_as_json(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        if os.environ.get("SPARKCTL_DEBUG"):
            raise
        show_error(unexpected(error))
        sys.exit(SparkctlError.exit_code)

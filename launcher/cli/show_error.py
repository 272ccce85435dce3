"""How an error looks on the terminal."""

from __future__ import annotations

import json

import typer

from launcher.errors import SparkctlError


def show_error(error: SparkctlError) -> None:
    """`error:` with node and message, then the next command to type."""
    first, *rest = str(error).splitlines() or [""]
    typer.secho(f"error: {first}", err=True, fg=typer.colors.RED)
    for line in rest:
        typer.echo(f"  {line}", err=True)
    hint = error.hint or error.usual_hint
    if hint:
        typer.echo(f"  -> {hint}", err=True)


def print_error_as_json(error: SparkctlError) -> None:
    """For `--json`: stdout holds one JSON object also when the command failed."""
    value = {
        "message": error.message,
        "hint": error.hint or error.usual_hint,
        "node": error.node,
        "exit_status": error.exit_code,
    }
    typer.echo(json.dumps({"error": value}, indent=2))

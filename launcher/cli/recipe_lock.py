"""sparkctl recipe lock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import JsonOption


def lock(
    name: Annotated[
        str, typer.Argument(help="A recipe: a file, a shipped name or @registry/name.", metavar="RECIPE")
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="DIR", help="Pin the model as it lies here. Default: the hub's list."
        ),
    ] = None,
    install_lock: Annotated[
        str | None,
        typer.Option(
            "--install-lock", metavar="NAME|FILE", help="The lock that `sparkctl install` was given."
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="PATH", help="An engine's Python on this machine, to pin its files too."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: NAME.lock.yaml beside the recipe."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pin what a recipe runs with: model files, engine packages or image, extension, recipe, each by hash.

    \b
    sparkctl recipe lock mine.yaml --checkpoint /models/v41-flash
    sparkctl up --recipe mine.yaml                 refuses what differs, on this machine or on a node
    sparkctl up --recipe mine.yaml --unlocked      starts all the same; the run's record says so
    """
    from launcher.registry.make_lock import LockSources, make_lock, write_lock

    made = make_lock(name, LockSources(checkpoint=checkpoint, install_lock=install_lock, python=python))
    path = write_lock(name, made, output)
    if as_json:
        typer.echo(json.dumps({"file": str(path), "lock": made.model_dump(mode="json")}, indent=2))
        return
    engine = made.engine.image or f"{len(made.engine.packages)} packages"
    typer.echo(f"wrote {path}: {len(made.model.files)} model files by the {made.model.source}, {engine}")
    unhashed = sum(1 for item in made.model.files.values() if item.sha256 is None)
    if unhashed:
        typer.echo(
            f"note: the hub has no sha256 of {unhashed} small files; --checkpoint DIR pins them on nodes too"
        )

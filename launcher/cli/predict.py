"""`sparkctl predict`: speed by a paper model, its error against published figures,
and what changes are worth."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import JsonOption, ProfileOption, RecipeOption


def predict(
    recipe: RecipeOption = None,
    profile: ProfileOption = None,
    published: Annotated[
        bool, typer.Option("--published", help="Every published figure, and the model's error.")
    ] = False,
    changes: Annotated[
        bool,
        typer.Option(
            "--changes", help="What each change, expert format and Engram's reads should be worth on a GB10."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Predict decode step, tokens per second and prefill rate of a recipe on its Sparks. Nothing is run.

    \b
    sparkctl predict --recipe v41-flash-3x     step by item, tokens/s, prompts by length
    sparkctl predict --published               the model against published figures, row by row
    sparkctl predict --changes                 each change with and without, expert formats, Engram on NVMe
    """
    import json as json_module

    from launcher.cli.print_table import print_table
    from launcher.compose_recipe import load_recipe
    from launcher.errors import UsageError
    from launcher.performance import tables
    from launcher.performance.recipe_speed import recipe_speed

    if sum((recipe is not None, published, changes)) != 1:
        raise UsageError(
            "exactly one of --recipe, --published and --changes must be given",
            hint="sparkctl predict --recipe v41-flash-3x",
        )
    if profile is not None and recipe is None:
        raise UsageError("--profile must come with --recipe", hint="sparkctl predict --recipe v41-flash-3x")
    if published:
        if json:
            typer.echo(json_module.dumps(tables.published_document(), indent=2))
            return
        for table in (tables.published_table(), tables.missed_table(), tables.not_predicted_table()):
            print_table(*table)
            typer.echo("")
        for line in tables.summary_lines():
            typer.echo(line)
    elif changes:
        if json:
            typer.echo(json_module.dumps(tables.changes_document(), indent=2))
            return
        for table in (tables.changes_table(), tables.formats_table(), tables.engram_table()):
            print_table(*table)
            typer.echo("")
        typer.echo("estimates, not run: docs/performance-model.md says how far the model is off")
    else:
        assert recipe is not None
        speed = recipe_speed(load_recipe(recipe, profile=profile)[0])
        if json:
            typer.echo(json_module.dumps(tables.recipe_document(speed), indent=2))
            return
        print_table(*tables.recipe_table(speed))
        if speed.groups > 1:
            typer.echo(f"{speed.groups} groups: each serves that; the router shares streams among them")
        typer.echo(tables.waiting_line(speed))
        typer.echo("predicted, not run: docs/performance-model.md says how far the model is off")

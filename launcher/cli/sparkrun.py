"""sparkctl recipe import-sparkrun | export-sparkrun."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.sparkrun.report import NotCarried

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of on stdout.")
]


def import_sparkrun(
    file: Annotated[Path, typer.Argument(help="A sparkrun recipe, version 2, for SGLang.", metavar="FILE")],
    name: Annotated[
        str | None, typer.Option("--name", help="The recipe's name. Default: that of the file.")
    ] = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a recipe of a sparkrun recipe; every key that could not be carried is named, with the reason.

    \b
    sparkctl recipe import-sparkrun theirs.yaml --output mine.yaml

    Nothing in it is expanded or run: $NAME, `...` and commands are told, not carried out.
    """
    import yaml

    from launcher.read_yaml import read_text, show_path
    from launcher.sparkrun.import_recipe import import_recipe

    recipe, report = import_recipe(read_text(file), show_path(file), name)
    data = recipe.model_dump(mode="json", exclude_unset=True)
    text = yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True)
    _give(text, report, output, as_json, then="; next: sparkctl recipe validate {file}")


def export_sparkrun(
    name: Annotated[
        str, typer.Argument(help="A recipe: a file, a shipped name or @registry/name.", metavar="RECIPE")
    ],
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a sparkrun recipe, version 2, of a recipe; every key that could not be carried is named."""
    from launcher.compose_recipe import load_recipe
    from launcher.sparkrun.export_recipe import export_recipe

    text, report = export_recipe(load_recipe(name)[0])
    _give(text, report, output, as_json)


def _give(
    text: str, report: Sequence[NotCarried], output: Path | None, as_json: bool, *, then: str = ""
) -> None:
    """`then`: what to type next; sparkctl reads no recipe of sparkrun's but to import it."""
    from launcher.write_file import write_file

    if output is not None:
        write_file(output, text)
    if as_json:
        value = {
            "file": str(output) if output else None, "yaml": text, "not_carried": [asdict(i) for i in report],
        }  # fmt: skip
        typer.echo(json.dumps(value, indent=2))
        return
    if output is None:
        typer.echo(text, nl=False)
    for item in report:
        typer.echo(f"not carried: {item.key!a}: {item.reason}".replace("'", ""), err=True)
    if output is not None:
        typer.echo(f"wrote {output}{then.replace('{file}', str(output))}", err=True)

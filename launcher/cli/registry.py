"""sparkctl recipe registry add | list | update | remove."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonOption

if TYPE_CHECKING:
    from launcher.registry.registries import Registry
    from launcher.registry.update_registry import Change

app = typer.Typer(
    no_args_is_help=True,
    help="""Registries: git repositories that recipes are shared in.

\b
sparkctl recipe registry add team https://example.org/team/recipes.git
sparkctl recipe search
sparkctl recipe pull @team/NAME && sparkctl up --recipe @team/NAME

What comes from a registry is data: it is checked, never run (docs/sharing.md).
""",
)

RegistryArgument = Annotated[str, typer.Argument(help="A registry's name.", metavar="NAME")]


@app.command("add")
def add(
    name: RegistryArgument,
    url: Annotated[
        str, typer.Argument(help="https or ssh address without credentials, or a directory.", metavar="URL")
    ],
    branch: Annotated[
        str | None, typer.Option("--branch", help="Read this branch instead of the repository's own.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a registry, check all of it, and remember it as @NAME."""
    from launcher.registry.update_registry import add_registry

    change = add_registry(name, url, branch, time.time())
    if as_json:
        typer.echo(json.dumps(_change(change), indent=2))
        return
    typer.echo(f"registry {name}: {change.num_recipes} recipes, commit {change.registry.commit[:12]}")
    typer.echo(f"next: sparkctl recipe search; sparkctl recipe pull @{name}/RECIPE")


@app.command("list")
def list_registries(as_json: JsonOption = False) -> None:
    """The registries that were added."""
    from launcher.cli.print_table import print_table
    from launcher.registry.registries import load_index, load_registry, registry_names

    known = [load_registry(name) for name in registry_names()]
    counts = [len(load_index(item).index.recipes) for item in known]
    if as_json:
        entries = [_registry(item, count) for item, count in zip(known, counts, strict=True)]
        typer.echo(json.dumps(entries, indent=2))
    elif not known:
        typer.echo("no registry was added yet: sparkctl recipe registry add NAME URL")
    else:
        rows = [
            (item.name, str(count), item.commit[:12], _when(item.updated_unix), item.url)
            for item, count in zip(known, counts, strict=True)
        ]
        print_table(("registry", "recipes", "commit", "updated", "address"), rows)


@app.command("update")
def update(
    names: Annotated[
        list[str] | None, typer.Argument(help="Registries; all of them without one.", metavar="NAME...")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch what is new. A registry that is refused or cannot be reached keeps its last good copy."""
    from launcher.cli.show_error import show_error
    from launcher.errors import SparkctlError
    from launcher.registry.registries import registry_names
    from launcher.registry.update_registry import update_registry

    results: list[dict[str, object]] = []
    failed: SparkctlError | None = None
    for name in names or registry_names():
        try:
            change = update_registry(name, time.time())
        except SparkctlError as error:
            failed = failed or error
            results.append({"name": name, "error": error.message, "hint": error.hint or error.usual_hint})
            show_error(error)
            continue
        results.append(_change(change))
        if not as_json:
            _show_change(change)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    elif not results:
        typer.echo("no registry was added yet: sparkctl recipe registry add NAME URL")
    if failed is not None:
        raise typer.Exit(failed.exit_code)


@app.command("remove")
def remove(name: RegistryArgument, as_json: JsonOption = False) -> None:
    """Forget a registry. What was pulled from it stays, and stays usable."""
    from launcher.registry.update_registry import remove_registry

    gone = remove_registry(name)
    if as_json:
        typer.echo(json.dumps({"removed": gone.name, "url": gone.url}))
    else:
        typer.echo(f"registry {gone.name} is forgotten; pulled recipes stay")


def _show_change(change: Change) -> None:
    name, commit = change.registry.name, change.registry.commit[:12]
    if not change.is_new_commit:
        typer.echo(f"registry {name}: nothing new (commit {commit})")
        return
    typer.echo(f"registry {name}: {change.num_recipes} recipes, commit {commit}")
    for sign, items in (("+", change.added), ("-", change.removed)):
        for item in items[:20]:
            typer.echo(f"  {sign} {item}")
        if len(items) > 20:
            typer.echo(f"  {sign} {len(items) - 20} more")


def _change(change: Change) -> dict[str, object]:
    return {
        **_registry(change.registry, change.num_recipes),
        "is_new_commit": change.is_new_commit,
        "added": list(change.added),
        "removed": list(change.removed),
    }


def _registry(item: Registry, num_recipes: int) -> dict[str, object]:
    keys = ("name", "url", "branch", "commit", "updated_unix")
    return {**{key: getattr(item, key) for key in keys}, "num_recipes": num_recipes}


def _when(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix))

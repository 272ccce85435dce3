"""sparkctl recipe list | show | validate; the other verbs of `recipe` are in modules of their own."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from launcher.cli import recipe_lock, registry, share, sparkrun
from launcher.cli.options import ProfileOption

app = typer.Typer(no_args_is_help=True, help="List, show, check and share recipes.")
app.add_typer(registry.app, name="registry")
for verb in (share.search, share.pull, share.push, share.diff, share.upgrade, share.rollback):
    app.command()(verb)
app.command("lock")(recipe_lock.lock)
app.command("import-sparkrun")(sparkrun.import_sparkrun)
app.command("export-sparkrun")(sparkrun.export_sparkrun)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
NameArgument = Annotated[
    str, typer.Argument(help="A shipped recipe's name, a path, or @registry/name.", metavar="RECIPE")
]


@app.command("list")
def list_recipes(as_json: JsonFlag = False) -> None:
    """Shipped recipes, with what has been run on hardware."""
    from launcher.compose_recipe import compose_recipe
    from launcher.find_recipe import shipped_recipes
    from launcher.read_yaml import show_path

    found = [(compose_recipe(path)[0], path) for path in shipped_recipes().values()]
    if as_json:
        entries = [
            {
                "name": recipe.name,
                "description": recipe.description,
                "file": show_path(path),
                "runtime": recipe.engine.runtime,
                "nodes": recipe.parallelism.nodes,
                "tp": recipe.parallelism.tp,
                "ep": recipe.parallelism.ep,
                "profiles": list(recipe.profiles),
                "evidence": recipe.evidence.model_dump(mode="json"),
            }
            for recipe, path in found
        ]
        typer.echo(json.dumps(entries, indent=2))
        return
    from launcher.cli.print_table import print_table

    rows = [
        (
            recipe.name,
            str(recipe.parallelism.nodes),
            str(recipe.parallelism.tp),
            str(recipe.parallelism.ep),
            ", ".join(recipe.profiles),
            recipe.engine.runtime,
            recipe.evidence.status.replace("_", " "),
            recipe.description,
        )
        for recipe, _ in found
    ]
    print_table(("recipe", "nodes", "tp", "ep", "profiles", "runtime", "evidence", "description"), rows)


@app.command("show")
def show_recipe(
    name: NameArgument,
    profile: ProfileOption = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Every value, defaults too, with its origin.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """One recipe after `extends`: what its files say, or with --resolved every value and its origin."""
    from launcher.choose_profile import put_profile_over
    from launcher.compose_recipe import compose_recipe, read_recipe_tree, resolved_values
    from launcher.config_problem import dotted
    from launcher.find_recipe import find_recipe
    from launcher.read_yaml import show_path

    path = find_recipe(name)
    recipe, provenance = compose_recipe(path, profile=profile)
    values = list(resolved_values(recipe, provenance))
    if as_json:
        document = {
            "name": recipe.name,
            "file": show_path(path),
            "resolved": recipe.model_dump(mode="json"),
            "origins": {dotted(value.key): value.origin for value in values},
        }
        typer.echo(json.dumps(document, indent=2))
    elif resolved:
        from launcher.cli.print_table import print_columns

        print_columns([(dotted(value.key), json.dumps(value.value), value.origin) for value in values])
    else:
        import yaml

        typer.echo(f"# {show_path(path)}, with everything it extends")
        written = put_profile_over(read_recipe_tree(path), profile).data
        ordered = {key: written[key] for key in type(recipe).model_fields if key in written}
        typer.echo(yaml.safe_dump(ordered, sort_keys=False, width=110), nl=False)


@app.command("validate")
def validate_recipes(
    files: Annotated[
        list[str], typer.Argument(help="Files, or names of shipped recipes.", metavar="FILE...")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Check recipes as `up` would, without touching a node. Exit code 3 when one is wrong."""
    from launcher.compose_recipe import load_recipe
    from launcher.errors import ConfigError

    results: list[dict[str, object]] = []
    for file in files:
        try:
            recipe, _ = load_recipe(file)
        except ConfigError as error:
            hint = error.hint or error.usual_hint
            results.append({"file": file, "ok": False, "error": error.message, "hint": hint})
            continue
        results.append({"file": file, "ok": True, "recipe": recipe.name})
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        for result in results:
            _print_result(result)
    if not all(result["ok"] for result in results):
        raise typer.Exit(ConfigError.exit_code)


def _print_result(result: dict[str, object]) -> None:
    if result["ok"]:
        typer.echo(f"ok: {result['file']} ({result['recipe']})")
        return
    typer.echo(f"wrong: {result['error']}")
    if result["hint"]:
        typer.echo(f"  hint: {result['hint']}")

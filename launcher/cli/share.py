"""sparkctl recipe search | pull | push | diff | upgrade | rollback."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.recipe import Recipe
    from launcher.registry.compare_recipes import FieldChange
    from launcher.registry.move_version import Move
    from launcher.registry.pull_recipe import Candidate
    from launcher.registry.reference import Reference

SharedArgument = Annotated[
    str, typer.Argument(help="A shared recipe, perhaps with a version.", metavar="@REGISTRY/NAME[@VERSION]")
]


def search(
    words: Annotated[
        list[str] | None, typer.Argument(help="All of them must occur.", metavar="WORD...")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Only recipes for so many nodes.")
    ] = None,
    registry: Annotated[str | None, typer.Option("--registry", help="Only this registry.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search names, models and descriptions in all registries; works offline.

    \b
    sparkctl recipe search v41 --nodes 3
    """
    from launcher.cli.print_table import print_table
    from launcher.registry.search import search as run_search

    found = run_search(words or [], nodes=nodes, registry=registry)
    if as_json:
        entries = [
            {
                "name": str(item.reference), "newest": item.entry.newest, "used": item.used,
                "pulled": list(item.pulled), **item.entry.model_dump(mode="json"),
            }
            for item in found
        ]  # fmt: skip
        typer.echo(json.dumps(entries, indent=2))
    elif not found:
        typer.echo("nothing found; sparkctl recipe registry list, sparkctl recipe registry update")
    else:
        rows = [
            (
                str(item.reference), item.entry.newest, item.used or "", str(item.entry.nodes),
                item.entry.runtime, item.entry.evidence.replace("_", " "), item.entry.model,
                item.entry.description,
            )
            for item in found
        ]  # fmt: skip
        titles = ("recipe", "newest", "used here", "nodes", "runtime", "evidence", "model", "description")
        print_table(titles, rows)


def pull(name: SharedArgument, as_json: JsonOption = False) -> None:
    """Check a version (the newest, unless one is named) and keep it on this machine.

    \b
    sparkctl recipe pull @team/v41-3x          the newest that `registry update` has seen
    sparkctl recipe pull @team/v41-3x@1.0.0    this one

    The first version that is pulled is used; a later one once `recipe upgrade` says so.
    """
    from launcher.registry.pull_recipe import pull_recipe
    from launcher.registry.reference import parse_reference

    done = pull_recipe(parse_reference(name), time.time())
    if as_json:
        typer.echo(
            json.dumps({**asdict(done), "reference": str(done.reference), "file": str(done.file)}, indent=2)
        )
        return
    verb = "was here" if done.was_there else "pulled"
    typer.echo(
        f"{done.reference} {verb}, sha256 {done.sha256[:16]}{', with its lock' if done.has_lock else ''}"
    )
    if done.used == done.reference.version:
        typer.echo(f"next: sparkctl up --recipe @{done.reference.registry}/{done.reference.name}")
    else:
        typer.echo(f"version {done.used} is used still; next: sparkctl recipe upgrade {done.reference}")


def push(
    recipe: Annotated[str, typer.Argument(help="A recipe: a file, or a name.", metavar="RECIPE")],
    to: Annotated[str, typer.Argument(help="A registry that was added.", metavar="@REGISTRY")],
    version: Annotated[
        str | None, typer.Option("--version", help="Like 1.2.3. Default: the next one.")
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option("--branch", help="Push to this branch. Default: sparkctl/NAME-VERSION, for review."),
    ] = None,
    new: Annotated[
        str | None, typer.Option("--new", metavar="URL", help="Begin a registry in this empty repository.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a recipe: checked, planned, then one commit on a branch of the registry.

    \b
    sparkctl recipe push mine.yaml @team                   to a branch of its own, for others to review
    sparkctl recipe push mine.yaml @team --branch main     straight into the registry
    sparkctl recipe push mine.yaml @team --new URL         the first recipe of a new registry

    Refused: secrets, addresses and paths of machines, what loads code, unknown keys, what cannot be planned.
    `extends` is written out. NAME.lock.yaml beside the recipe goes along.
    """
    from launcher.errors import UsageError
    from launcher.registry.prepare_push import prepare_push
    from launcher.registry.push_recipe import Target, push_recipe
    from launcher.registry.reference import is_registry_name, is_version, shown
    from launcher.registry.registries import load_registry
    from launcher.registry.registry_url import RegistryUrl, parse_url

    registry = to.removeprefix("@")
    if version is not None and not is_version(version):
        raise UsageError(f"--version must be like 1.2.3, got {shown(version)}.", hint="leave it out")
    if not is_registry_name(registry):
        raise UsageError(
            f"a registry must be named @NAME, got {shown(to)}.", hint="sparkctl recipe registry list"
        )
    package = prepare_push(recipe)
    if new is not None:
        target = Target(registry=registry, url=parse_url(new), branch=branch, is_new=True)
    else:
        known = load_registry(registry)
        url = RegistryUrl(protocol=known.protocol, text=known.url)
        target = Target(registry=registry, url=url, base=known.branch, branch=branch)
    done = push_recipe(package, version, target)
    if as_json:
        typer.echo(json.dumps({**asdict(done), "reference": str(done.reference)}, indent=2))
        return
    lock = ", with its lock" if done.has_lock else ""
    typer.echo(f"{done.reference} is commit {done.commit[:12]} on branch {done.branch}{lock}")
    if new is not None:
        typer.echo(f"next: sparkctl recipe registry add {registry} {target.url.text}")
    elif branch is None:
        typer.echo(f"next: open a merge request for {done.branch} where the registry lives")
    else:
        typer.echo(f"next: sparkctl recipe registry update {registry}")


def diff(
    old: Annotated[
        str, typer.Argument(help="A recipe: @registry/name[@version], file or name.", metavar="A")
    ],
    new: Annotated[
        str | None,
        typer.Argument(help="Another. Default: the newest version of A in its registry.", metavar="B"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What differs between two recipes, value by value, defaults written out.

    \b
    sparkctl recipe diff @team/v41-3x                        what `upgrade` would change
    sparkctl recipe diff @team/v41-3x@1.0.0 @team/v41-3x@1.1.0
    sparkctl recipe diff mine.yaml @team/v41-3x
    """
    from launcher.errors import UsageError
    from launcher.registry.compare_recipes import compare_recipes
    from launcher.registry.reference import Reference, is_reference, parse_reference

    if new is None:
        if not is_reference(old):
            raise UsageError("diff must have two recipes, got one.", hint=f"sparkctl recipe diff {old} OTHER")
        asked = parse_reference(old)
        candidate = _candidate(Reference(registry=asked.registry, name=asked.name))
        second, second_name = candidate.recipe, str(candidate.reference)
    else:
        second, second_name = _any_version(new), new
    changes = compare_recipes(_any_version(old), second)
    if as_json:
        value = {"old": old, "new": second_name, "changes": [asdict(item) for item in changes]}
        typer.echo(json.dumps(value, indent=2))
        return
    _show_changes(changes, f"{old} and {second_name} serve the same, with the same settings")


def upgrade(name: SharedArgument, as_json: JsonOption = False) -> None:
    """Use the newest version, or the one named, and say what that changes.

    \b
    sparkctl recipe registry update && sparkctl recipe upgrade @team/v41-3x
    """
    from launcher.registry.move_version import upgrade as run_upgrade
    from launcher.registry.reference import parse_reference

    _show_move(run_upgrade(parse_reference(name), time.time()), as_json)


def rollback(name: SharedArgument, as_json: JsonOption = False) -> None:
    """Use the version that was used before, or the one named, and say what that changes."""
    from launcher.registry.move_version import rollback as run_rollback
    from launcher.registry.reference import parse_reference

    _show_move(run_rollback(parse_reference(name)), as_json)


def _any_version(name: str) -> Recipe:
    """A version that was not pulled is read from the copy of its registry."""
    from launcher.compose_recipe import load_recipe
    from launcher.registry.recipe_store import load_versions
    from launcher.registry.reference import is_reference, parse_reference

    if is_reference(name):
        asked = parse_reference(name)
        versions = load_versions(asked)
        if versions is None or (asked.version is not None and asked.version not in versions.pulled):
            return _candidate(asked).recipe
    return load_recipe(name)[0]


def _candidate(asked: Reference) -> Candidate:
    from launcher.registry.pull_recipe import read_candidate

    return read_candidate(asked, time.time())


def _show_move(move: Move, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(move), indent=2))
        return
    if move.old == move.new:
        typer.echo(f"{move.name} stays at {move.new}")
        return
    typer.echo(f"{move.name}: {move.old} -> {move.new}")
    _show_changes(move.changes, "  no value differs")
    typer.echo(f"back: sparkctl recipe rollback {move.name}@{move.old}")


def _show_changes(changes: Sequence[FieldChange], otherwise: str) -> None:
    from launcher.cli.print_table import print_columns

    if not changes:
        typer.echo(otherwise)
        return
    print_columns([(item.key, f"{json.dumps(item.old)} -> {json.dumps(item.new)}") for item in changes])

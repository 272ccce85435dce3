"""Upgrade and rollback: which pulled version a name without one means. Nothing is lost either way."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.recipe import Recipe
from launcher.registry.compare_recipes import FieldChange, compare_recipes
from launcher.registry.data_directory import data_lock
from launcher.registry.pull_recipe import keep, read_candidate
from launcher.registry.read_shared import read_shared
from launcher.registry.recipe_store import (
    Versions,
    load_versions,
    need_versions,
    save_versions,
    stored_file,
)
from launcher.registry.reference import Reference

MAX_REMEMBERED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """`changes`: every value that differs; empty with `old` equal to `new`."""

    name: str
    old: str
    new: str
    changes: tuple[FieldChange, ...]


def upgrade(asked: Reference, now_unix: float) -> Move:
    """To the version named, else the newest that the copy of the registry has; pulled when it is not here."""
    bare = Reference(registry=asked.registry, name=asked.name)
    with data_lock():
        known = need_versions(bare)
        target = asked.version
        if target is None or target not in known.pulled:
            candidate = read_candidate(asked, now_unix)
            target = candidate.reference.version or ""
            keep(candidate)
        return _move(bare, target)


def rollback(asked: Reference) -> Move:
    """To the version named, else the one that was used before."""
    bare = Reference(registry=asked.registry, name=asked.name)
    with data_lock():
        known = need_versions(bare)
        earlier = [version for version in known.before if version != known.used]
        target = asked.version or (earlier[-1] if earlier else None)
        if target is None:
            raise UsageError(
                f"{bare} must have been used in an earlier version, it was not"
                f" (pulled: {', '.join(known.in_order)}).",
                hint=f"sparkctl recipe rollback {bare}@VERSION",
            )
        return _move(bare, target)


def _move(bare: Reference, target: str) -> Move:
    known = load_versions(bare)
    assert known is not None
    old, new = bare.at(known.used), bare.at(target)
    changes = compare_recipes(_read(old), _read(new)) if known.used != target else ()
    if known.used != target:
        before = (*known.before, known.used)[-MAX_REMEMBERED:]
        if target in known.before:  # a rollback forgets what came after
            before = known.before[: len(known.before) - 1 - known.before[::-1].index(target)]
        save_versions(bare, Versions(used=target, before=before, pulled=known.pulled))
    return Move(name=str(bare), old=known.used, new=target, changes=changes)


def _read(reference: Reference) -> Recipe:
    return read_shared(stored_file(str(reference)).read_bytes(), reference)

"""Make a lock for a recipe and write it beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.compose_recipe import load_recipe
from launcher.registry.data_directory import save
from launcher.registry.find_lock import lock_of
from launcher.registry.lock_engine import lock_engine, lock_extension
from launcher.registry.lock_model import lock_model
from launcher.registry.recipe_lock import LockedRecipe, RecipeLock, lock_text, recipe_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSources:
    """Where the hashes come from; None: see lock_model.py and lock_engine.py for what is taken then."""

    checkpoint: Path | None = None
    install_lock: str | None = None
    python: str | None = None


def make_lock(name: str, sources: LockSources) -> RecipeLock:
    recipe, _ = load_recipe(name)
    return RecipeLock(
        schema_version=1,
        recipe=LockedRecipe(name=recipe.name, sha256=recipe_sha256(recipe)),
        model=lock_model(recipe, sources.checkpoint),
        engine=lock_engine(recipe, install_lock=sources.install_lock, python=sources.python),
        extension=lock_extension(),
    )


def write_lock(name: str, lock: RecipeLock, output: Path | None) -> Path:
    path = output or lock_of(name)
    save(path, lock_text(lock).encode())
    return path

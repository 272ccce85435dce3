"""Which lock belongs to a recipe: the one beside it. Those of shipped recipes lie in the user's data."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from launcher.find_recipe import is_path
from launcher.plan import LockPlan
from launcher.recipe import Recipe
from launcher.registry.check_lock import plan_lock
from launcher.registry.data_directory import data_directory
from launcher.registry.recipe_lock import read_lock
from launcher.registry.recipe_store import lock_file, need_versions
from launcher.registry.reference import is_reference, parse_reference


def lock_of(name: str) -> Path:
    """A recipe as a command names it -> the place of its lock, which may not be there."""
    if is_reference(name):
        reference = parse_reference(name)
        return lock_file(reference.at(reference.version or need_versions(reference).used))
    if is_path(name):
        path = Path(name).expanduser()
        return path.with_name(f"{path.stem}.lock.yaml")
    return data_directory() / "locks" / f"{name}.lock.yaml"


def locked_plan(name: str, recipe: Recipe, whole: Recipe) -> LockPlan | None:
    """None without a lock. `recipe` before any option of the command line but --profile; `whole`: without
    that too, as it was locked."""
    path = lock_of(name)
    if not path.is_file():
        return None
    lock, sha256 = read_lock(path)
    return plan_lock(
        recipe, whole, lock, file=str(path.absolute()), sha256=sha256, extension=version("sparkctl")
    )

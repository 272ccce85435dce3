"""Which file a recipe name means, and which recipes are shipped."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from launcher.errors import ConfigError

_SUFFIXES = (".yaml", ".yml")


def shipped_directory() -> Path:
    """The `recipes` package: the top of the tree in an editable install, beside launcher in a wheel."""
    return Path(str(files("recipes")))


def shipped_recipes() -> dict[str, Path]:
    """Name -> file of every shipped recipe. Bases that only others extend lie one level below."""
    return {path.stem: path for path in sorted(shipped_directory().glob("*.yaml"))}


def shipped_topologies() -> dict[str, Path]:
    """Name -> file of every example topology."""
    return {path.stem: path for path in sorted((shipped_directory() / "topologies").glob("*.yaml"))}


def find_recipe(name: str, *, relative_to: Path | None = None) -> Path:
    """A path (with a slash or .yaml), a shipped name, or @registry/name[@version] that was pulled -> file.
    Of these only a pulled one is opened here, to see that nobody has changed it.

    `relative_to` is the directory that relative paths start from; the current one when None.
    """
    if name.startswith("@"):
        from launcher.registry.recipe_store import stored_file

        return stored_file(name)
    if is_path(name):
        path = Path(name).expanduser()
        return path if path.is_absolute() or relative_to is None else relative_to / path
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    close = difflib.get_close_matches(name, shipped, n=1, cutoff=0.5)
    meant = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(
        f"recipe must be a file, a shipped name or @registry/name, got {name!r}.",
        hint=f"{meant}shipped: {', '.join(shipped)}",
    )


def is_path(name: str) -> bool:
    """True for what names a file rather than a shipped recipe."""
    return "/" in name or name.endswith(_SUFFIXES)

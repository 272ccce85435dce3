"""Recipe file -> checked recipe: `extends` puts a profile over its base, and every value keeps its origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from launcher.choose_profile import put_profile_over
from launcher.config_problem import KeyPath
from launcher.errors import ConfigError
from launcher.explain_problems import ProblemLine, config_error, nearest_origin, show_value
from launcher.find_recipe import find_recipe
from launcher.read_yaml import check_tree, read_tree
from launcher.recipe import Recipe
from launcher.yaml_tree import Provenance, YamlTree, merge_trees

# The deepest shipped chain has five files.
MAX_EXTENDS = 8

# What a file says about itself: a profile must not pass for run because its base was.
_NOT_INHERITED = ("name", "description", "evidence")
_NOT_INHERITED_PATHS = tuple((key,) for key in _NOT_INHERITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedValue:
    """One value of a model; `origin` is file:line:column, or "default"."""

    key: KeyPath
    value: object
    origin: str


def load_recipe(name: str, *, profile: str | None = None) -> tuple[Recipe, Provenance]:
    """A shipped name or a path -> the composed recipe, with its own or this profile. Raises ConfigError."""
    return compose_recipe(find_recipe(name), profile=profile)


def compose_recipe(path: Path, *, profile: str | None = None) -> tuple[Recipe, Provenance]:
    """Read `path` and everything it extends; the nearest file wins, key by key, then the profile's values.

    Every profile is checked, so that no file is valid only as long as nobody asks for the other one.
    """
    written = read_recipe_tree(path)
    tree = put_profile_over(written, profile)
    recipe = check_tree(tree, Recipe)
    for other in recipe.profiles:
        if other != recipe.profile:
            check_tree(put_profile_over(written, other), Recipe)
    return recipe, tree.origins


def read_recipe_tree(path: Path) -> YamlTree:
    """The merged values, not yet checked against the model."""
    chain = _read_chain(path)
    tree = chain[-1]
    for over in reversed(chain[:-1]):
        tree = merge_trees(_inheritable(tree), over)
    return tree


def _inheritable(tree: YamlTree) -> YamlTree:
    return YamlTree(
        file=tree.file,
        data={key: value for key, value in tree.data.items() if key not in _NOT_INHERITED},
        origins={
            path: origin for path, origin in tree.origins.items() if path[:1] not in _NOT_INHERITED_PATHS
        },
    )


def _read_chain(path: Path) -> list[YamlTree]:
    """The file, the one it extends, and so on."""
    chain = [read_tree(path)]
    seen = [path.resolve()]
    while "extends" in chain[-1].data:
        tree = chain[-1]
        where = str(nearest_origin(tree, ("extends",)))
        name = tree.data["extends"]
        if not isinstance(name, str) or not name:
            raise _refuse(tree, where, f"extends must be a shipped name or a path, got {show_value(name)}")
        base = _find_base(name, seen[-1].parent, where)
        if base.resolve() in seen:
            names = " -> ".join(file.name for file in [*seen, base])
            raise _refuse(tree, where, f"extends must not come back to the same file, got {names}")
        if len(chain) >= MAX_EXTENDS:
            raise _refuse(tree, where, f"extends must chain at most {MAX_EXTENDS} files, got more")
        try:
            chain.append(read_tree(base))
        except ConfigError as error:
            if base.exists():
                raise
            raise ConfigError(
                f"extends must name an existing recipe, got {name!r} ({where}).", hint=error.hint
            ) from error
        seen.append(base.resolve())
    return chain


def _find_base(name: str, directory: Path, where: str) -> Path:
    try:
        return find_recipe(name, relative_to=directory)
    except ConfigError as error:
        raise ConfigError(
            f"extends must be a shipped name or a path, got {name!r} ({where}).", hint=error.hint
        ) from error


def _refuse(tree: YamlTree, where: str, message: str) -> ConfigError:
    return config_error(tree.file, [ProblemLine(message, where)])


def resolved_values(model: BaseModel, provenance: Provenance) -> Iterator[ResolvedValue]:
    """Every value of the model in order, with where it came from: nothing is left out, defaults included."""
    yield from _walk(model.model_dump(mode="json", by_alias=True), (), provenance)


def _walk(value: object, key: KeyPath, provenance: Provenance) -> Iterator[ResolvedValue]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _walk(inner, (*key, name), provenance)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, inner in enumerate(value):
            yield from _walk(inner, (*key, index), provenance)
    else:
        origin = provenance.get(key)
        yield ResolvedValue(key=key, value=value, origin=str(origin) if origin else "default")

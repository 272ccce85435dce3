"""index.yaml of a registry, schema version 1: every recipe, its versions and their hashes.

A map, not a list: the parser refuses a name that stands twice, with its place.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from launcher.config_problem import ConfigProblem, KeyPath, raise_problems
from launcher.errors import ConfigError
from launcher.frozen_model import FrozenModel
from launcher.parse_yaml import parse_yaml
from launcher.read_yaml import check_tree as check_model
from launcher.recipe import Recipe
from launcher.registry.check_tree import INDEX_NAME
from launcher.registry.errors import RegistryRefused
from launcher.registry.reference import is_recipe_name, is_version, newest, shown, version_key

MAX_RECIPES = 5_000
MAX_VALUES = 200_000
# libyaml where PyYAML was built with it: ten times as fast, the same events.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Line = Annotated[str, Field(max_length=300)]


class VersionEntry(FrozenModel):
    """sha256 of the recipe's file, and of its lock where it has one."""

    sha256: Sha256
    lock_sha256: Sha256 | None = None


class RecipeEntry(FrozenModel):
    """What can be known of a recipe without reading it; of its newest version."""

    description: Line = ""
    model: Line
    nodes: Annotated[int, Field(ge=1, le=8)]
    runtime: Literal["venv", "docker", "cpu"]
    evidence: Literal["not_run", "run"]
    versions: dict[str, VersionEntry]

    @property
    def newest(self) -> str:
        return newest(tuple(self.versions))


class RegistryIndex(FrozenModel):
    schema_version: Literal[1]
    description: Line = ""
    recipes: dict[str, RecipeEntry]

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems(_problems(self))
        return self


def _problems(index: RegistryIndex) -> list[ConfigProblem]:
    found = [*_text_problems(index)]
    if len(index.recipes) > MAX_RECIPES:
        found.append(
            ConfigProblem(
                at=("recipes",), message=f"recipes must be at most {MAX_RECIPES}, got {len(index.recipes)}"
            )
        )
    for name, entry in index.recipes.items():
        at = ("recipes", name)
        if not is_recipe_name(name):
            message = f"a recipe's name must be lower-case letters, digits, dots, dashes, got {shown(name)}"
            found.append(ConfigProblem(at=at, message=message))
        if not entry.versions:
            found.append(ConfigProblem(at=at, message=f"{shown(name)} must have a version, got none"))
        found += [
            ConfigProblem(at=(*at, "versions"), message=f"a version must be like 1.2.3, got {shown(version)}")
            for version in entry.versions
            if not is_version(version)
        ]
    return found


def _text_problems(index: RegistryIndex) -> list[ConfigProblem]:
    """What is shown on a terminal must not be able to steer one."""
    texts: list[tuple[KeyPath, str]] = [(("description",), index.description)]
    for name, entry in index.recipes.items():
        texts += [(("recipes", name, key), getattr(entry, key)) for key in ("description", "model")]
    return [
        ConfigProblem(at=at, message=f"{at[-1]} must be one printable line, got {shown(text)}")
        for at, text in texts
        if not text.isprintable()
    ]


def parse_index(content: bytes, registry: str) -> RegistryIndex:
    """Raises RegistryRefused with file, line and column."""
    file = f"@{registry}/{INDEX_NAME}"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RegistryRefused(
            f"{file} must be UTF-8 text, got byte 0x{content[error.start]:02x} ({file}:{line})."
        ) from error
    try:
        return check_model(parse_yaml(text, file, max_values=MAX_VALUES, loader=LOADER), RegistryIndex)
    except ConfigError as error:
        raise RegistryRefused(printable(error.message), hint=printable(error.hint)) from error


def printable(message: str) -> str:
    """An error's own lines stay; every other control character in it came from a stranger."""
    return "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        for line in message.split("\n")
    )


def write_index(index: RegistryIndex) -> bytes:
    """In order of names and versions, so that a change is a small difference."""
    recipes = {}
    for name in sorted(index.recipes):
        entry = index.recipes[name].model_dump(mode="json", exclude_none=True)
        entry["versions"] = {
            key: entry["versions"][key] for key in sorted(entry["versions"], key=version_key)
        }
        recipes[name] = entry
    value = {"schema_version": 1, "description": index.description, "recipes": recipes}
    return yaml.safe_dump(value, sort_keys=False, width=110, allow_unicode=True).encode()


def entry_of(recipe: Recipe, versions: dict[str, VersionEntry]) -> RecipeEntry:
    return RecipeEntry(
        description=recipe.description,
        model=recipe.model.repo or recipe.model.path,
        nodes=recipe.parallelism.nodes,
        runtime=recipe.engine.runtime,
        evidence=recipe.evidence.status,
        versions=versions,
    )


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

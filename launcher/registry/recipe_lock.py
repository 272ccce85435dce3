"""NAME.lock.yaml, schema version 1: what a recipe ran with, by hash. No data of any node."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from launcher.errors import ConfigError
from launcher.frozen_model import FrozenModel, TextTuple
from launcher.parse_yaml import parse_yaml
from launcher.read_yaml import check_tree, show_path
from launcher.recipe import Recipe
from launcher.registry.check_tree import MAX_LOCK_BYTES

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Sha1 = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+!:/@-]{0,199}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/ +-]{0,199}$")]


class LockedRecipe(FrozenModel):
    name: Word
    sha256: Sha256


class LockedFile(FrozenModel):
    """A hub knows sha256 only of large files; of the others it knows git's own hash."""

    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256 | None = None
    git_sha1: Sha1 | None = None


class LockedModel(FrozenModel):
    """`source`: whose word the hashes are. `revision` is the commit that the hub named."""

    source: Literal["checkpoint", "hub"]
    repo: Word | None = None
    revision: Word | None = None
    files: dict[FileName, LockedFile]


class LockedPackage(FrozenModel):
    version: Word
    sha256: TextTuple = ()


class LockedEngine(FrozenModel):
    """`packages`: of the install lock with the hashes of their wheels, or of an environment without.
    `content`: package -> hash over its sources, as on a node.
    """

    runtime: Literal["venv", "docker", "cpu"]
    sglang_version: Word
    image: Word | None = None
    install_lock_sha256: Sha256 | None = None
    packages: dict[Word, LockedPackage] = {}
    content: dict[Word, Sha256] = {}


class LockedExtension(FrozenModel):
    version: Word
    content: dict[Word, Sha256] = {}


class RecipeLock(FrozenModel):
    schema_version: Literal[1]
    recipe: LockedRecipe
    model: LockedModel
    engine: LockedEngine
    extension: LockedExtension


def recipe_sha256(recipe: Recipe) -> str:
    """Over every value that changes what runs, defaults too: not over name, description and evidence."""
    value = recipe.model_dump(mode="json", exclude={"name", "description", "evidence", "extends"})
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_lock(path: Path) -> tuple[RecipeLock, str]:
    """The lock and the sha256 of its file. Raises ConfigError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{show_path(path)} must be readable, got: {error.strerror}.", hint="sparkctl recipe lock NAME"
        ) from error
    return read_lock_bytes(content, show_path(path)), hashlib.sha256(content).hexdigest()


def read_lock_bytes(content: bytes, file: str) -> RecipeLock:
    if len(content) > MAX_LOCK_BYTES:
        raise ConfigError(f"{file} must have at most {MAX_LOCK_BYTES} bytes, got {len(content)}.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} must be UTF-8 text, got byte 0x{content[error.start]:02x}.") from error
    return check_tree(parse_yaml(text, file), RecipeLock)


def lock_text(lock: RecipeLock) -> str:
    head = "# Written by `sparkctl recipe lock`; `up` refuses what differs from it (docs/sharing.md).\n"
    value = lock.model_dump(mode="json", exclude_none=True)
    return head + yaml.safe_dump(value, sort_keys=False, width=110)

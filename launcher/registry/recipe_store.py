"""Pulled versions of shared recipes, byte for byte, and which of them is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from launcher.errors import ConfigError, UsageError
from launcher.frozen_model import FrozenModel, TextTuple
from launcher.registry.data_directory import data_directory, load_model, save, save_model
from launcher.registry.reference import Reference, parse_reference, version_key
from launcher.registry.registry_index import sha256_of

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Pulled(FrozenModel):
    """Where a version came from, and what it was then."""

    url: str
    commit: str
    sha256: Sha256
    lock_sha256: Sha256 | None
    pulled_unix: float


class Versions(FrozenModel):
    """`used` is what @registry/name means without a version; `before` what it meant earlier, newest last."""

    schema_version: Literal[1] = 1
    used: str
    before: TextTuple = ()
    pulled: dict[str, Pulled]

    @property
    def in_order(self) -> list[str]:
        return sorted(self.pulled, key=version_key)


def store_root() -> Path:
    return data_directory() / "recipes"


def directory_of(reference: Reference) -> Path:
    return store_root() / reference.registry / reference.name


def load_versions(reference: Reference) -> Versions | None:
    """None for a recipe of which nothing was pulled."""
    path = directory_of(reference) / "versions.json"
    return load_model(path, Versions, f"remove {path.parent}, then: sparkctl recipe pull {reference}")


def need_versions(reference: Reference) -> Versions:
    found = load_versions(reference)
    if found is None:
        raise UsageError(
            f"{reference} must have been pulled, it was not.", hint=f"sparkctl recipe pull {reference}"
        )
    return found


def save_versions(reference: Reference, versions: Versions) -> None:
    save_model(directory_of(reference) / "versions.json", versions)


def save_version(reference: Reference, content: bytes, lock: bytes | None) -> None:
    """`reference` has a version. The record of it (save_versions) comes after its files."""
    if lock is not None:
        save(lock_file(reference), lock)
    save(recipe_file(reference), content)


def recipe_file(reference: Reference) -> Path:
    return directory_of(reference) / f"{reference.version}.yaml"


def lock_file(reference: Reference) -> Path:
    return directory_of(reference) / f"{reference.version}.lock.yaml"


def stored_file(text: str) -> Path:
    """@registry/name[@version] -> the pulled file. Raises UsageError when it was not pulled, ConfigError when
    somebody has changed it since.
    """
    asked = parse_reference(text)
    versions = need_versions(asked)
    reference = asked.at(asked.version or versions.used)
    pulled = versions.pulled.get(reference.version or "")
    if pulled is None:
        raise UsageError(
            f"{reference} must have been pulled, there is {', '.join(versions.in_order)}.",
            hint=f"sparkctl recipe pull {reference}",
        )
    path = recipe_file(reference)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} must be readable, got: {error.strerror}.", hint=f"sparkctl recipe pull {reference}"
        ) from error
    if sha256_of(content) != pulled.sha256:
        raise ConfigError(
            f"{path} must be as it was pulled, got other content.",
            hint=f"sparkctl recipe pull {reference}; own changes go into a file that extends {reference}",
        )
    return path

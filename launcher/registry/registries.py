"""The registries this machine knows, and the copy of each that the last update left."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from launcher.errors import UsageError
from launcher.frozen_model import FrozenModel
from launcher.registry.data_directory import data_directory, load_model
from launcher.registry.errors import RegistryRefused
from launcher.registry.git_objects import TreeFile, read_files
from launcher.registry.reference import REGISTRY_FORM, Reference, is_registry_name, shown
from launcher.registry.registry_index import RecipeEntry, RegistryIndex, sha256_of


class Registry(FrozenModel):
    """`commit` is what `generation`, a directory beside this record, holds."""

    schema_version: Literal[1] = 1
    name: str
    url: str
    protocol: Literal["https", "ssh", "file"]
    branch: str | None
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]
    generation: str
    updated_unix: float


class IndexCopy(FrozenModel):
    """The index as it was checked, and which object holds each file: nothing has to be parsed again."""

    index: RegistryIndex
    objects: dict[str, tuple[str, int]] = Field(strict=False)


def registries_root() -> Path:
    return data_directory() / "registries"


def record_path(name: str) -> Path:
    return registries_root() / name / "registry.json"


def repository_of(registry: Registry) -> Path:
    return registries_root() / registry.name / registry.generation / "repo.git"


def registry_names() -> list[str]:
    root = registries_root()
    return sorted(path.parent.name for path in root.glob("*/registry.json")) if root.is_dir() else []


def load_registry(name: str) -> Registry:
    """Raises UsageError for a name that was never added."""
    hint = f"sparkctl recipe registry remove {name}, then add it again"
    found = load_model(record_path(name), Registry, hint) if is_registry_name(name) else None
    if found is not None:
        return found
    if not is_registry_name(name):
        raise UsageError(f"a registry's name must be {REGISTRY_FORM}, got {shown(name)}.")
    names = registry_names()
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        f"a registry must have been added, got {name!r} (known: {', '.join(names) or 'none'}).",
        hint=f"{meant}sparkctl recipe registry add {name} URL",
    )


def load_index(registry: Registry) -> IndexCopy:
    path = registries_root() / registry.name / registry.generation / "index.json"
    hint = f"sparkctl recipe registry update {registry.name}"
    found = load_model(path, IndexCopy, hint)
    if found is None:
        raise RegistryRefused(
            f"the copy of registry {registry.name} must be there, got no {path}.", hint=hint
        )
    return found


def find_entry(copy: IndexCopy, reference: Reference) -> tuple[RecipeEntry, str]:
    """Entry and version (the newest without one). Raises UsageError."""
    entry = copy.index.recipes.get(reference.name)
    if entry is None:
        close = difflib.get_close_matches(reference.name, copy.index.recipes, n=1, cutoff=0.5)
        meant = f"did you mean @{reference.registry}/{close[0]}? " if close else ""
        raise UsageError(
            f"registry {reference.registry} must have recipe {reference.name!r}, it has not.",
            hint=f"{meant}sparkctl recipe registry update {reference.registry}; sparkctl recipe search",
        )
    version = reference.version or entry.newest
    if version not in entry.versions:
        raise UsageError(
            f"@{reference.registry}/{reference.name} must have version {version},"
            f" it has {', '.join(entry.versions)}.",
            hint=f"sparkctl recipe registry update {reference.registry}",
        )
    return entry, version


def read_from_registry(registry: Registry, copy: IndexCopy, paths: dict[str, str]) -> dict[str, bytes]:
    """`paths`: path -> sha256 that it must have. Raises RegistryRefused when the copy was changed."""
    files = []
    for path in paths:
        object_id, size_bytes = copy.objects[path]
        files.append(
            TreeFile(
                mode="100644", kind="blob", object_id=object_id, size_bytes=size_bytes, path=path.encode()
            )
        )
    contents = dict(zip(paths, read_files(repository_of(registry), files), strict=True))
    for path, content in contents.items():
        check_sha256(registry.name, path, content, paths[path])
    return contents


def check_sha256(registry: str, path: str, content: bytes, wanted: str) -> None:
    seen = sha256_of(content)
    if seen != wanted:
        raise RegistryRefused(
            f"registry {registry}: {path} must have the sha256 of its index,"
            f" {wanted[:16]}..., got {seen[:16]}..."
        )

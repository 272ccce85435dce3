"""Pull: one version from the copy of its registry into the store, after all checks. Needs no network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.recipe import Recipe
from launcher.registry.check_tree import lock_path, recipe_path
from launcher.registry.data_directory import data_lock
from launcher.registry.errors import RegistryRefused
from launcher.registry.read_shared import read_shared
from launcher.registry.recipe_lock import read_lock_bytes
from launcher.registry.recipe_store import (
    Pulled,
    Versions,
    load_versions,
    recipe_file,
    save_version,
    save_versions,
)
from launcher.registry.reference import Reference
from launcher.registry.registries import find_entry, load_index, load_registry, read_from_registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """`used`: the version that the name without one means now."""

    reference: Reference
    file: Path
    sha256: str
    used: str
    was_there: bool
    has_lock: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A version as its registry has it, checked."""

    reference: Reference
    recipe: Recipe
    content: bytes
    lock: bytes | None
    source: Pulled


def read_candidate(asked: Reference, now_unix: float) -> Candidate:
    """The version asked for, or the newest; nothing is kept. Raises RegistryRefused."""
    registry = load_registry(asked.registry)
    copy = load_index(registry)
    entry, version = find_entry(copy, asked)
    item = entry.versions[version]
    paths = {recipe_path(asked.name, version): item.sha256}
    if item.lock_sha256:
        paths[lock_path(asked.name, version)] = item.lock_sha256
    contents = list(read_from_registry(registry, copy, paths).values())
    reference = asked.at(version)
    recipe = read_shared(contents[0], reference)
    lock = contents[1] if len(contents) > 1 else None
    if lock is not None:
        read_lock_bytes(lock, f"{reference} (lock)")
    source = Pulled(
        url=registry.url, commit=registry.commit, sha256=item.sha256, lock_sha256=item.lock_sha256,
        pulled_unix=now_unix,
    )  # fmt: skip
    return Candidate(reference=reference, recipe=recipe, content=contents[0], lock=lock, source=source)


def pull_recipe(asked: Reference, now_unix: float) -> Pull:
    """The first version that is pulled is used; a later one only when `upgrade` says so."""
    with data_lock():
        return keep(read_candidate(asked, now_unix))


def keep(candidate: Candidate) -> Pull:
    """Under the lock."""
    reference, version = candidate.reference, candidate.reference.version or ""
    known = load_versions(reference)
    before = known.pulled.get(version) if known else None
    if before and (before.sha256, before.lock_sha256) != (
        candidate.source.sha256,
        candidate.source.lock_sha256,
    ):
        raise RegistryRefused(
            f"{reference} must stay what it was when it was pulled, sha256 {before.sha256[:16]}...,"
            f" the registry has {candidate.source.sha256[:16]}... now.",
            hint="ask its owner for a new version; what was pulled stays",
        )
    save_version(reference, candidate.content, candidate.lock)
    pulled = {**(known.pulled if known else {}), version: candidate.source}
    made = Versions(
        used=known.used if known else version, before=known.before if known else (), pulled=pulled
    )
    save_versions(reference, made)
    return Pull(
        reference=reference, file=recipe_file(reference), sha256=candidate.source.sha256, used=made.used,
        was_there=before is not None, has_lock=candidate.lock is not None,
    )  # fmt: skip

"""Search the copies of all registries: words against names, models and descriptions. Needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.registry.recipe_store import load_versions
from launcher.registry.reference import Reference
from launcher.registry.registries import load_index, load_registry, registry_names
from launcher.registry.registry_index import RecipeEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`used` and `pulled` tell what of it is on this machine."""

    reference: Reference
    entry: RecipeEntry
    used: str | None
    pulled: tuple[str, ...]


def search(words: Sequence[str], *, nodes: int | None, registry: str | None) -> list[Found]:
    """Every word must stand somewhere in name, model or description; case does not matter."""
    wanted = [word.lower() for word in words]
    found = []
    for name in [registry] if registry else registry_names():
        index = load_index(load_registry(name)).index
        for recipe, entry in index.recipes.items():
            text = f"@{name}/{recipe} {entry.model} {entry.description}".lower()
            if all(word in text for word in wanted) and nodes in (None, entry.nodes):
                found.append(_found(Reference(registry=name, name=recipe), entry))
    return found


def _found(reference: Reference, entry: RecipeEntry) -> Found:
    versions = load_versions(reference)
    return Found(
        reference=reference, entry=entry, used=versions.used if versions else None,
        pulled=tuple(versions.in_order) if versions else (),
    )  # fmt: skip

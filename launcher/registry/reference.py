"""Names of shared recipes: @registry/name or @registry/name@version."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.errors import UsageError

REGISTRY_FORM = "lower-case letters, digits and dashes, 32 at most"
_REGISTRY = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_RECIPE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")  # as Recipe.name
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Without a version: the one that is used here, or the newest, as the command says."""

    registry: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"@{self.registry}/{self.name}" + (f"@{self.version}" if self.version else "")

    def at(self, version: str) -> Reference:
        return Reference(registry=self.registry, name=self.name, version=version)


def is_reference(text: str) -> bool:
    return text.startswith("@")


def is_registry_name(text: str) -> bool:
    return _REGISTRY.fullmatch(text) is not None


def is_recipe_name(text: str) -> bool:
    # `NAME.lock.yaml` is a lock, and a lock is no recipe.
    return _RECIPE.fullmatch(text) is not None and ".." not in text and not text.endswith((".lock", "."))


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def version_key(version: str) -> tuple[int, ...]:
    """1.10.0 is newer than 1.9.0."""
    return tuple(int(part) for part in version.split("."))


def newest(versions: list[str] | tuple[str, ...]) -> str:
    return max(versions, key=version_key)


def parse_reference(text: str) -> Reference:
    """Raises UsageError for anything but @registry/name[@version]."""
    match = re.fullmatch(r"@([^/@]*)/([^/@]*)(?:@([^/@]*))?", text)
    if match is None:
        raise _wrong(text)
    registry, name, version = match[1], match[2], match[3]
    if not is_registry_name(registry) or not is_recipe_name(name):
        raise _wrong(text)
    if version is not None and not is_version(version):
        raise _wrong(text)
    return Reference(registry=registry, name=name, version=version)


def _wrong(text: str) -> UsageError:
    return UsageError(
        f"a shared recipe must be named @registry/name or @registry/name@1.2.3, got {shown(text)}.",
        hint="sparkctl recipe search lists the names",
    )


def shown(text: str | bytes) -> str:
    """For messages: what a stranger wrote, with every character that could move a cursor spelled out."""
    plain = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    cut = plain if len(plain) <= 120 else plain[:117] + "..."
    return ascii(cut)

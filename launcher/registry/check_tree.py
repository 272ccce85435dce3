"""Pure: which names, kinds and sizes of files a registry may have, before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from launcher.registry.errors import RegistryRefused
from launcher.registry.git_objects import TreeFile
from launcher.registry.reference import is_recipe_name, is_version, shown

INDEX_NAME = "index.yaml"
MAX_FILES = 20_000
MAX_INDEX_BYTES = 4 << 20
MAX_RECIPE_BYTES = 128 << 10
# A lock lists every file of a checkpoint and every wheel of an engine.
MAX_LOCK_BYTES = 1 << 20
# READMEs and the like. Nothing reads them, but they come along.
MAX_OTHER_BYTES = 4 << 20

_KINDS = {"120000": "a symbolic link", "160000": "a submodule"}
_PART = re.compile(rb"[A-Za-z0-9 ._+@=,()-]{1,100}")


def check_tree(files: Sequence[TreeFile], registry: str) -> Mapping[str, TreeFile]:
    """Path -> file. Raises RegistryRefused, naming the first file that may not be there."""
    if len(files) > MAX_FILES:
        raise RegistryRefused(f"registry {registry} must have at most {MAX_FILES} files, got {len(files)}.")
    seen: dict[str, TreeFile] = {}
    folded: dict[str, str] = {}
    for item in files:
        _check_file(item, registry)
        path = item.path.decode("ascii")
        _check_case(path, folded, registry)
        seen[path] = item
    if INDEX_NAME not in seen:
        raise RegistryRefused(
            f"registry {registry} must have an {INDEX_NAME}, got none.",
            hint="a new registry begins with: sparkctl recipe push RECIPE @NAME --new (docs/sharing.md)",
        )
    return seen


def recipe_path(name: str, version: str) -> str:
    return f"recipes/{name}/{version}.yaml"


def lock_path(name: str, version: str) -> str:
    return f"recipes/{name}/{version}.lock.yaml"


def _check_file(item: TreeFile, registry: str) -> None:
    name = shown(item.path)
    parts = item.path.split(b"/")
    if any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts):
        raise RegistryRefused(f"registry {registry}: a file must stay inside the registry, got {name}.")
    if any(_PART.fullmatch(part) is None for part in parts):
        raise RegistryRefused(
            f"registry {registry}: file names must be letters, digits, blanks and . _ - + @ = , ( ),"
            f" got {name}."
        )
    if item.kind != "blob" or item.mode not in ("100644", "100755"):
        seen = _KINDS.get(item.mode, f"mode {item.mode}")
        raise RegistryRefused(f"registry {registry}: {name} must be a plain file, got {seen}.")
    limit = _limit_bytes(item.path.decode("ascii"), registry)
    if item.size_bytes > limit:
        raise RegistryRefused(
            f"registry {registry}: {name} must have at most {limit} bytes, got {item.size_bytes}."
        )


def _limit_bytes(path: str, registry: str) -> int:
    if path == INDEX_NAME:
        return MAX_INDEX_BYTES
    parts = PurePosixPath(path).parts
    if parts[0] != "recipes":
        return MAX_OTHER_BYTES
    version = parts[-1].removesuffix(".yaml")
    is_lock = version.endswith(".lock")
    good = len(parts) == 3 and is_recipe_name(parts[1]) and is_version(version.removesuffix(".lock"))
    if not (good and parts[-1].endswith(".yaml")):
        raise RegistryRefused(
            f"registry {registry}: files below recipes/ must be NAME/1.2.3.yaml or NAME/1.2.3.lock.yaml,"
            f" got {shown(path)}."
        )
    return MAX_LOCK_BYTES if is_lock else MAX_RECIPE_BYTES


def _check_case(path: str, folded: dict[str, str], registry: str) -> None:
    """Two names that are one on another file system would take each other's place there."""
    parts = path.split("/")
    for size in range(1, len(parts) + 1):
        here = "/".join(parts[:size])
        other = folded.setdefault(here.lower(), here)
        if other != here:
            raise RegistryRefused(
                f"registry {registry}: names must differ in more than case,"
                f" got {shown(other)} and {shown(here)}."
            )

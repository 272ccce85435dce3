"""The list of a checkpoint's files, with sizes and sha256, kept beside them: `.sparkctl-weights.json`.

    {"schema_version": 1, "origin": {...}, "left_out": ["engram"], "complete": true,
     "files": {name: {"size_bytes": n, "sha256": hex, "stamp": [mtime_ns, inode] or null}},
     "whole": {name: sha256}}

`whole`, where parts were left out: what the source has of the index and of the shards that are not here.

A stamp says that this very file was hashed and found equal; it is null while the file is not here. Whoever
changes the file changes the stamp, so that a look at sizes and stamps tells what has to be hashed again.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused
from launcher.node.run_dir import write_file

MANIFEST_NAME = ".sparkctl-weights.json"
PARTIAL_SUFFIX = ".sparkctl-partial"
SCHEMA_VERSION = 1


def place(models: str, model_path: str) -> Path:
    """The checkpoint's directory on this node: absolute, or below the node's `paths.models`."""
    path = Path(model_path).expanduser()
    return path if path.is_absolute() else Path(models).expanduser().absolute() / path


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """None when there is none. A damaged one is refused: what it vouched for must be hashed again."""
    path = directory / MANIFEST_NAME
    try:
        manifest = json.loads(path.read_bytes())
        good = manifest["schema_version"] == SCHEMA_VERSION and all(
            is_safe_name(name) and is_entry(entry) for name, entry in manifest["files"].items()
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path} must be readable, got: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise Refused(
            f"{path} must be a manifest of schema version {SCHEMA_VERSION}, got something else.",
            f"remove it; the files are then hashed again: rm {path}",
        )
    return dict(manifest)


def need_manifest(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise Refused(
            f"The checkpoint must be there, got no directory {directory}.",
            "sparkctl weights fetch, or sparkctl weights push",
            {"absent": True},
        )
    manifest = read_manifest(directory)
    if manifest is None:
        raise Refused(
            f"The checkpoint must have a manifest with hashes, got none ({directory / MANIFEST_NAME}).",
            "hash what is there: sparkctl weights fetch --from DIR, or copy it: sparkctl weights push",
        )
    return manifest


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Temp, fsync, rename, fsync of the directory."""
    write_file(directory / MANIFEST_NAME, json.dumps(manifest, indent=1, sort_keys=True).encode(), 0o644)
    sync_directory(directory)


def new_manifest(
    files: dict[str, Any],
    *,
    origin: dict[str, Any],
    left_out: list[str],
    whole: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "origin": origin,
        "left_out": sorted(left_out),
        "whole": whole or {},
        "complete": False,
        "files": files,
    }


def stamp_of(status: os.stat_result) -> list[Any]:
    return [status.st_mtime_ns, status.st_ino]


def is_verified(directory: Path, name: str, entry: dict[str, Any]) -> bool:
    """The file is here and is the one that was hashed."""
    try:
        status = (directory / name).stat()
    except OSError:
        return False
    return status.st_size == entry["size_bytes"] and stamp_of(status) == entry.get("stamp")


def is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and type(entry.get("size_bytes")) is int
        and entry["size_bytes"] >= 0
        and isinstance(entry.get("sha256"), str)
        and re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]) is not None
    )


def is_safe_name(name: object) -> bool:
    """Relative, inside the directory, and neither hidden nor one of ours."""
    return isinstance(name, str) and all(
        part and not part.startswith(".") and "\0" not in part for part in name.split("/")
    )


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def partial_path(directory: Path, name: str) -> Path:
    path = directory / name
    return path.with_name(f".{path.name}{PARTIAL_SUFFIX}")

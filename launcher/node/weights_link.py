"""What is on this node already, by hash: blobs of the Hugging Face cache and files of other checkpoints."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused
from launcher.node.weights_hash import hash_file
from launcher.node.weights_manifest import is_verified, partial_path, read_manifest, stamp_of


def hub_caches() -> list[Any]:
    """Where huggingface_hub keeps blobs on this node; large files are named by their sha256 there."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    return [Path(cache).expanduser()]


def find_copies(wanted: dict[str, Any], directory: Path, models: str) -> dict[str, Any]:
    """sha256 -> (path, trusted) for hashes of `wanted` (sha256 -> size). Trusted ones were hashed before."""
    found: dict[str, Any] = {}
    for path in _hub_blobs():
        if path.name in wanted and _size(path) == wanted[path.name]:
            found[path.name] = (path, False)
    for other in (directory, *_checkpoints(Path(models).expanduser())):
        try:
            manifest = read_manifest(other)
        except Refused:  # somebody else's damaged manifest vouches for nothing
            continue
        for name, entry in (manifest or {"files": {}})["files"].items():
            if entry["sha256"] in wanted and is_verified(other, name, entry):
                found[entry["sha256"]] = (other / name, True)
    return found


def link(
    copy: Path, directory: Path, name: str, sha256: str, *, trusted: bool, on_bytes: Callable[[int], None]
) -> list[Any] | None:
    """Hard-link `copy` as `name` when its bytes are those; its stamp, or None when it cannot serve.

    It cannot when its content is other than its name says, or on another file system: then the file is
    received like any other.
    """
    if not trusted and hash_file(copy, on_bytes)[0] != sha256:
        return None
    target, temp = directory / name, partial_path(directory, name).with_suffix(".sparkctl-link")
    target.parent.mkdir(parents=True, exist_ok=True)
    temp.unlink(missing_ok=True)
    try:
        os.link(copy.resolve(), temp)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES):
            return None
        raise
    temp.replace(target)
    temp.unlink(missing_ok=True)  # rename does nothing when both names are the same file
    return stamp_of(target.stat())


def _hub_blobs() -> Iterator[Path]:
    for cache in hub_caches():
        try:
            yield from cache.glob("models--*/blobs/*")
        except OSError:  # a cache that cannot be read has nothing for us
            continue


def _checkpoints(models: Path) -> Iterator[Path]:
    try:
        yield from (path for path in models.iterdir() if path.is_dir())
    except OSError:
        return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1

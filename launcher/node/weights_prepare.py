"""A receiving node before a push: what is here, what can be linked, what must come, and the space for it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_hash import hash_files
from launcher.node.weights_link import find_copies, link
from launcher.node.weights_manifest import (
    is_entry,
    is_safe_name,
    is_verified,
    new_manifest,
    partial_path,
    place,
    read_manifest,
    stamp_of,
    write_manifest,
)
from launcher.node.weights_report import Report

LOCK_NAME = ".sparkctl-weights.lock"


def weights_prepare(
    *,
    models: str,
    model_path: str,
    files: dict[str, Any],
    origin: dict[str, Any],
    left_out: list[str],
    whole: dict[str, Any],
) -> None:
    """Last line: {"done": {"directory", "num_present", "num_linked", "num_missing", "missing_bytes",
    "needed_bytes", "free_bytes"}}. `needed_bytes` is what the disk must still take.

    Hashes what has the right size and no stamp; a file that is wrong stays until the right one is whole.
    """
    directory = place(models, model_path)
    make_directory(directory)
    with directory_lock(directory):
        _refuse_source(directory, files)
        manifest = open_manifest(directory, files, origin, left_out, whole)
        _adopt(directory, manifest["files"])
        num_present = len(files) - len(missing_files(directory, manifest["files"]))
        num_linked = _link_copies(directory, models, manifest["files"])
        missing = missing_files(directory, manifest["files"])
        manifest["complete"] = not missing
        save_manifest(directory, manifest)
    missing_bytes = sum(manifest["files"][name]["size_bytes"] for name in missing)
    here_bytes = sum(_partial_bytes(directory, name) for name in missing)
    disk = os.statvfs(directory)
    answer(
        {
            "done": {
                "directory": str(directory),
                "num_present": num_present,
                "num_linked": num_linked,
                "num_missing": len(missing),
                "missing_bytes": missing_bytes,
                "needed_bytes": missing_bytes - here_bytes,
                "free_bytes": disk.f_bavail * disk.f_frsize,
            }
        }
    )


def make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".sparkctl-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Refused(
            f"{directory} must be a directory that can be written, got: {error.strerror}.",
            "give this node a place of its user (paths.models, for wheels paths.cache), or change its owner: "
            f"namei -l {directory}",
        ) from error


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """One writer at a time; the kernel frees it when this process ends, however it ends."""
    with (directory / LOCK_NAME).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(
                f"{directory} must not be written by two at once, got another sparkctl weights at work.",
                "wait for it; on the node: ps -ef | grep python3",
            ) from error
        yield


def open_manifest(
    directory: Path,
    files: dict[str, Any],
    origin: dict[str, Any],
    left_out: list[str],
    whole: dict[str, Any],
) -> dict[str, Any]:
    """The list that is to be here, with the stamps of what is here. Refuses names that lead outside."""
    for name, entry in files.items():
        if not is_safe_name(name) or not is_entry(entry):
            raise Refused(
                f"Files must have plain names, sizes and hashes, got {name!r:.80}.", "update sparkctl"
            )
    known = (read_manifest(directory) or {"files": {}})["files"]
    merged = {}
    for name, entry in files.items():
        same = name in known and known[name]["sha256"] == entry["sha256"]
        stamp = known[name].get("stamp") if same else None
        merged[name] = {"size_bytes": entry["size_bytes"], "sha256": entry["sha256"], "stamp": stamp}
    return new_manifest(merged, origin=origin, left_out=left_out, whole=whole)


def _refuse_source(directory: Path, files: dict[str, Any]) -> None:
    """The source's own directory, seen over NFS or from a node on the same machine: a subset would ruin it.

    The same inodes and times throughout are the same files; a copy has inodes of its own.
    """
    stamps = {name: entry["source_stamp"] for name, entry in files.items() if entry.get("source_stamp")}
    try:
        is_same = all(stamp_of((directory / name).stat()) == stamp for name, stamp in stamps.items())
    except OSError:
        return
    if stamps and is_same:
        raise Refused(
            f"{directory} must be a directory of this node's own, got the source's (shared or the same).",
            "a shared checkpoint needs no push: sparkctl weights verify; or set paths.models of this node",
        )


def missing_files(directory: Path, files: dict[str, Any]) -> list[Any]:
    return [name for name, entry in files.items() if not is_verified(directory, name, entry)]


def _adopt(directory: Path, files: dict[str, Any]) -> None:
    """Files of the right size that nobody vouches for: an earlier copy by hand, or a push that was killed."""
    candidates = [
        name
        for name in missing_files(directory, files)
        if _size(directory / name) == files[name]["size_bytes"]
    ]
    with Report("check", sum(files[name]["size_bytes"] for name in candidates)) as report:
        hashed = hash_files({name: directory / name for name in candidates}, report.add)
    for name, result in hashed.items():
        if not isinstance(result, Refused) and result[0] == files[name]["sha256"]:
            files[name]["stamp"] = result[1]


def _link_copies(directory: Path, models: str, files: dict[str, Any]) -> int:
    missing = missing_files(directory, files)
    wanted = {
        files[name]["sha256"]: files[name]["size_bytes"] for name in missing if files[name]["size_bytes"]
    }
    copies = find_copies(wanted, directory, models)
    unsure = sum(wanted[sha256] for sha256, (_, trusted) in copies.items() if not trusted)
    num_linked = 0
    with Report("link", unsure) as report:
        for name in missing:
            sha256 = files[name]["sha256"]
            if sha256 in copies:
                copy, trusted = copies[sha256]
                stamp = link(copy, directory, name, sha256, trusted=trusted, on_bytes=report.add)
                files[name]["stamp"] = stamp
                num_linked += stamp is not None
    return num_linked


def save_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    try:
        write_manifest(directory, manifest)
    except OSError as error:
        raise Refused(
            f"{directory} must take the manifest, got: {error.strerror}.", f"make room: df -h {directory}"
        ) from error


def _partial_bytes(directory: Path, name: str) -> int:
    return max(0, _size(partial_path(directory, name)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1

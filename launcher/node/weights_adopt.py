"""A checkpoint that is on this node already becomes the one to serve: hard links, hashes, a manifest."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_list import make_manifest
from launcher.node.weights_manifest import partial_path, place, stamp_of, sync_directory
from launcher.node.weights_prepare import directory_lock, make_directory
from launcher.node.weights_report import Report
from launcher.node.weights_scan import check, scan

COPY_BYTES = 64 << 20


def weights_adopt(*, models: str, model_path: str, source: str) -> None:
    """`source` is a directory of this node; it may be the checkpoint's own. Last line: {"done": {...}}."""
    directory, origin = place(models, model_path), place(models, source)
    found = scan(origin)
    check(origin)
    make_directory(directory)
    with directory_lock(directory):
        if not directory.samefile(origin):
            _refuse_strangers(directory, found, origin)
            _bring(origin, directory, found)
        answer({"done": listed(make_manifest(directory, origin={"directory": str(origin)}), directory)})


def listed(manifest: dict[str, Any], directory: Path) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "num_files": len(manifest["files"]),
        "total_bytes": sum(entry["size_bytes"] for entry in manifest["files"].values()),
        "origin": manifest["origin"],
    }


def _refuse_strangers(directory: Path, found: dict[str, Any], origin: Path) -> None:
    """Shards of another checkpoint would be loaded, or hashed, beside these."""
    strangers = sorted(set(scan(directory)) - set(found))
    if strangers:
        raise Refused(
            f"{directory} must hold this checkpoint alone, got {len(strangers)} file(s) that "
            f"{origin} has not, first {strangers[0]}.",
            "name another directory: --model-path; or move the old files away",
        )


def _bring(origin: Path, directory: Path, found: dict[str, Any]) -> None:
    """Hard links on one file system, else copies; each file is whole under its name, or not there."""
    to_copy = [name for name in found if not _link(origin / name, directory, name)]
    needed = sum(found[name].st_size for name in to_copy)
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise Refused(
            f"{directory} must have {needed} bytes free for the copy, got {free}.",
            f"make room: df -h {directory}",
        )
    with Report("copy", needed) as report:
        for name in to_copy:
            try:
                _copy(origin / name, directory, name, found[name], report)
            except OSError as error:
                raise Refused(f"{directory} must take {name}, got: {error.strerror}.") from error


def _link(path: Path, directory: Path, name: str) -> bool:
    target, temp = directory / name, partial_path(directory, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    temp.unlink(missing_ok=True)
    try:
        os.link(path.resolve(), temp)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES):
            return False
        raise Refused(f"{directory} must take {name}, got: {error.strerror}.") from error
    temp.replace(target)
    temp.unlink(missing_ok=True)  # rename does nothing when both names are the same file
    return True


def _copy(path: Path, directory: Path, name: str, scanned: os.stat_result, report: Report) -> None:
    """Half of an old file and half of a new one, where something writes meanwhile, never gets the name."""
    temp = partial_path(directory, name)
    with path.open("rb", buffering=0) as source, temp.open("wb", buffering=0) as target:
        while count := os.sendfile(target.fileno(), source.fileno(), None, COPY_BYTES):
            report.add(count)
        os.fsync(target.fileno())
        for fd in (source.fileno(), target.fileno()):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        both = (os.fstat(source.fileno()), path.stat())
        copied = os.fstat(target.fileno()).st_size
    if copied != scanned.st_size or any(stamp_of(status) != stamp_of(scanned) for status in both):
        temp.unlink()
        raise Refused(
            f"{name} must stay as it is while it is copied, got a change ({path}).",
            "wait until whatever writes it has ended, then repeat",
        )
    temp.replace(directory / name)
    sync_directory((directory / name).parent)

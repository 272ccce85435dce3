"""The files of a checkpoint, and why it is none: links in a circle, pointers, a wrong index or header."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from launcher.errors import SparkctlError
from launcher.fit.read_checkpoint import read_checkpoint, read_json_object
from launcher.node.answer import Refused

LFS_START = b"version https://git-lfs"
LFS_MAX_BYTES = 1024


def scan(directory: Path) -> dict[str, Any]:
    """name -> os.stat_result of every file that is not hidden, links to files followed. Raises Refused."""
    if not directory.is_dir():
        raise Refused(
            f"The checkpoint must be a directory, got none ({directory}).",
            "name it, or: sparkctl weights fetch",
        )
    found: dict[str, Any] = {}
    _scan_into(directory, "", found)
    for name, status in found.items():
        if status.st_size <= LFS_MAX_BYTES:
            _refuse_pointer(directory / name)
    return found


def check(directory: Path) -> None:
    """config.json is one; index and shard headers agree with each other and with the files' sizes.

    Reads no weight.
    """
    try:
        read_json_object(directory / "config.json")
        read_checkpoint(directory)
    except SparkctlError as error:
        raise Refused(error.message, error.hint) from error


def _scan_into(directory: Path, prefix: str, found: dict[str, Any]) -> None:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise Refused(f"{directory} must be readable, got: {error.strerror}.") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        name = prefix + entry.name
        try:
            name.encode()
            status = entry.stat()
        except UnicodeEncodeError as error:
            raise Refused(f"File names must be UTF-8, got {os.fsencode(name)!r} ({directory}).") from error
        except OSError as error:
            raise _broken(Path(entry.path), error) from error
        if stat.S_ISREG(status.st_mode):
            found[name] = status
        elif stat.S_ISDIR(status.st_mode) and not entry.is_symlink():
            _scan_into(Path(entry.path), f"{name}/", found)
        else:
            kind = "a link to a directory" if entry.is_symlink() else "something else"
            raise Refused(
                f"A checkpoint must hold files and directories, got {kind} ({entry.path}).",
                f"remove it: rm {entry.path}",
            )


def _broken(path: Path, error: OSError) -> Refused:
    if error.errno == errno.ELOOP:
        seen = "links that lead in a circle"
    elif error.errno == errno.ENOENT:
        seen = f"a link to nothing: {path.readlink()}" if path.is_symlink() else "no file any more"
    else:
        seen = error.strerror or str(error)
    return Refused(f"Every file must be readable, got {seen} ({path}).", f"look at it: ls -l {path}")


def _refuse_pointer(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_START))
    except OSError as error:
        raise _broken(path, error) from error
    if start == LFS_START:
        raise Refused(
            f"The checkpoint must hold its weights, got a Git LFS pointer (a text stub) ({path}).",
            "fetch the files: git lfs pull in that directory, or sparkctl weights fetch",
        )

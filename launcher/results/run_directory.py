"""The files of one run's directory, read without trusting it: no links, nothing huge, nothing unexpected."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ResultWrong, UsageError
from launcher.results.manifest import MANIFEST_NAME, FileEntry, Manifest
from launcher.results.strict_json import parse_model

REQUESTS = "requests.jsonl"
ENGINE = "engine_metrics.jsonl"
NODES = "node_samples.jsonl"
SUMMARY = "summary.json"
REFERENCE = "reference.json"
LOCK = "lock.yaml"
# Of a measurement that is no run of `bench`; a run has the hashes in its manifest.
SUMS = "SHA256SUMS"
PLOTS = "plots"
RAW_FILES = (REQUESTS, ENGINE, NODES)

# A soak of a day at C16 with whole outputs stays below 1 GiB.
MAX_FILE_BYTES = 4 << 30
MAX_JSON_BYTES = 16 << 20
MAX_LINE_BYTES = 64 << 20
MAX_FILES = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    path: str
    num_bytes: int


def find_files(directory: Path) -> dict[str, FoundFile]:
    """Relative path -> file, every one of them but the manifest. Raises ResultWrong by name."""
    if not directory.is_dir():
        raise UsageError(
            f"{directory} must be the directory of a run, got no directory", hint="sparkctl results list"
        )
    found: dict[str, FoundFile] = {}
    for path, status in _walk(directory):
        if len(found) >= MAX_FILES:
            raise ResultWrong(f"{directory} must hold at most {MAX_FILES} files, got more")
        if status.st_size > MAX_FILE_BYTES:
            raise ResultWrong(
                f"{directory / path} must have at most {MAX_FILE_BYTES} bytes, got {status.st_size}"
            )
        found[path] = FoundFile(path=path, num_bytes=status.st_size)
    found.pop(MANIFEST_NAME, None)
    return found


def _walk(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    for entry in _entries(directory):
        if entry.name == PLOTS and entry.is_dir(follow_symlinks=False):
            plots = list(_entries(Path(entry.path)))
            if not plots:
                raise ResultWrong(f"{directory / PLOTS} must hold plots, got an empty directory")
            for plot in plots:
                yield f"{PLOTS}/{plot.name}", _regular(plot)
        else:
            yield entry.name, _regular(entry)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if not _NAME.fullmatch(entry.name):
            raise ResultWrong(
                f"{directory} must hold files named with letters, digits, dot, dash and underscore,"
                f" got {entry.name!r}"
            )
    return entries


def _regular(entry: os.DirEntry[str]) -> os.stat_result:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        raise ResultWrong(f"{entry.path} must be a regular file, got {kind}")
    if status.st_nlink > 1:
        raise ResultWrong(f"{entry.path} must have one name, got {status.st_nlink} hard links")
    return status


def open_plain(directory: Path, path: str) -> int:
    """A file descriptor that is sure to be a regular file below `directory`; the caller closes it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(directory / path, flags)
    except OSError as error:
        raise ResultWrong(f"{directory / path} must be a readable file, got: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ResultWrong(f"{directory / path} must be a regular file")
    return descriptor


def hash_file(directory: Path, path: str) -> FileEntry:
    digest, num_bytes = hashlib.sha256(), 0
    with os.fdopen(open_plain(directory, path), "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return FileEntry(path=path, num_bytes=num_bytes, sha256=digest.hexdigest())


def read_small(directory: Path, path: str) -> bytes:
    with os.fdopen(open_plain(directory, path), "rb") as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ResultWrong(f"{directory / path} must have at most {MAX_JSON_BYTES} bytes, got more")
    return content


def read_lines(directory: Path, path: str) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line without its end); every line must be ended, none may be empty."""
    with os.fdopen(open_plain(directory, path), "rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if not line.endswith(b"\n"):
                got = "a longer one" if len(line) > MAX_LINE_BYTES else "one that is cut off"
                raise ResultWrong(
                    f"{directory / path} line {number} must be a whole line of at most"
                    f" {MAX_LINE_BYTES} bytes, got {got}"
                )
            yield number, line[:-1]


def read_manifest(directory: Path) -> tuple[Manifest, bytes]:
    """The manifest and its bytes. Raises ResultWrong, saying what a directory without one is."""
    if not os.path.lexists(directory / MANIFEST_NAME):
        if os.path.lexists(directory / REQUESTS):
            raise ResultWrong(
                f"{directory} must be a finished run, got one without {MANIFEST_NAME}",
                hint=f"go on with it: sparkctl bench --resume {directory}",
            )
        if os.path.lexists(directory / SUMS):
            raise ResultWrong(
                f"{directory} is not a bench run but a measurement with a shape of its own: it has no"
                f" {MANIFEST_NAME}",
                hint=f"check its files: cd {shlex.quote(str(directory))} && sha256sum -c {SUMS}",
            )
        raise ResultWrong(
            f"{directory} is not a bench run: it has no {MANIFEST_NAME}", hint="sparkctl results list"
        )
    content = read_small(directory, MANIFEST_NAME)
    return parse_model(Manifest, content, str(directory / MANIFEST_NAME)), content

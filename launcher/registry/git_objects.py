"""What lies in a bare repository: names of a commit, and contents of files, read without a checkout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.registry.errors import RegistryRefused
from launcher.registry.run_git import MAX_ANSWER_BYTES, git

# Twice what 20 000 files with names of 150 characters need (check_tree.py counts them).
MAX_LISTING_BYTES = 8 << 20

_ENTRY = re.compile(
    rb"(?P<mode>\d{6}) (?P<kind>\w+) (?P<id>[0-9a-f]{40,64}) +(?P<size>\d+|-)\t(?P<path>.*)", re.S
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """`path` as git has it: bytes that may be anything but NUL."""

    mode: str
    kind: str
    object_id: str
    size_bytes: int
    path: bytes


def list_files(repository: Path, commit: str) -> tuple[TreeFile, ...]:
    """Every name of the commit, folders written out."""
    listing = git(
        ["ls-tree", "-r", "-z", "-l", "--full-tree", commit],
        repository=repository, max_answer_bytes=MAX_LISTING_BYTES,
    )  # fmt: skip
    files = []
    for line in listing.split(b"\0")[:-1]:
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise RegistryRefused(f"git must list a file a line, got {line[:80]!a}.")
        size = match["size"]
        files.append(
            TreeFile(
                mode=match["mode"].decode(),
                kind=match["kind"].decode(),
                object_id=match["id"].decode(),
                size_bytes=int(size) if size != b"-" else 0,
                path=match["path"],
            )
        )
    return tuple(files)


def read_files(repository: Path, files: Sequence[TreeFile]) -> list[bytes]:
    """Contents in the order asked. The sizes are known and bounded before (check_tree.py)."""
    if not files:
        return []
    total = sum(item.size_bytes for item in files)
    if total > MAX_ANSWER_BYTES // 2:
        raise RegistryRefused(
            f"the recipes of a registry must have at most {MAX_ANSWER_BYTES >> 21} MiB, got {total >> 20}."
        )
    asked = "".join(f"{item.object_id}\n" for item in files).encode()
    answer = git(["cat-file", "--batch"], repository=repository, stdin=asked)
    contents, at = [], 0
    for item in files:
        end = answer.index(b"\n", at)
        header = answer[at:end].split()
        if header != [item.object_id.encode(), b"blob", str(item.size_bytes).encode()]:
            raise RegistryRefused(f"git must answer with file {item.object_id}, got {answer[at:end]!a}.")
        contents.append(answer[end + 1 : end + 1 + item.size_bytes])
        at = end + 2 + item.size_bytes
    return contents

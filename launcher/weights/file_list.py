"""What a source says it has: names, sizes and sha256 of a checkpoint's files. Parsed at the edge."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from launcher.errors import NodeFailed
from launcher.frozen_model import FrozenModel, TextTuple

T = TypeVar("T", bound=FrozenModel)


class FileEntry(FrozenModel):
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    # (mtime_ns, inode) on the source; None for the index of a subset, which is on no disk.
    source_stamp: Annotated[tuple[int, int], Field(strict=False)] | None


class FileList(FrozenModel):
    """`origin` is {"repo", "revision"} or {"directory"}; `left_out` names parts that are not here, `whole`
    has the sha256 of their shards and of the index before it was rewritten."""

    directory: str
    origin: dict[str, str]
    left_out: TextTuple
    whole: dict[str, str]
    files: dict[str, FileEntry]

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files.values())


class Stock(FrozenModel):
    """What a receiving node has of a list, and its room. `needed_bytes` is what its disk must still take."""

    directory: str
    num_present: int
    num_linked: int
    num_missing: int
    missing_bytes: int
    needed_bytes: int
    free_bytes: int


class Received(FrozenModel):
    received_bytes: int
    num_received: int


class Fetched(FrozenModel):
    directory: str
    num_files: int
    total_bytes: int
    origin: dict[str, str]


class Verified(FrozenModel):
    """One node's checkpoint against its own manifest. `files` is name -> sha256 as listed there, `whole` the
    same of what was left out."""

    complete: bool
    left_out: TextTuple
    whole: dict[str, str]
    files: dict[str, str]
    wrong: Annotated[tuple[Annotated[tuple[str, str], Field(strict=False)], ...], Field(strict=False)]
    missing: TextTuple
    partial_bytes: int
    have_bytes: int
    total_bytes: int


class Dropped(FrozenModel):
    num_files: int
    total_bytes: int
    cached_before_bytes: int
    cached_after_bytes: int


def parse(model: type[T], node: str, verb: str, answer: dict[str, Any]) -> T:
    """Raises NodeFailed with the node's name when the answer is none."""
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise NodeFailed(
            f"{verb} must answer with a {model.__name__}, got {first['msg'].lower()} at {where}.",
            hint="something on the node prints into non-interactive shells (~/.bashrc): silence it",
            node=node,
        ) from error

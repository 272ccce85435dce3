"""A long request on one node: its progress as it comes, its result, or an error when it falls silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from launcher.call_node import Answer, NodeStream
from launcher.errors import NodeFailed
from launcher.frozen_model import FrozenModel
from launcher.remote import Remote
from launcher.weights.file_list import parse

# A node reports twice a second; a disk that syncs gigabytes may hold its threads for longer.
SILENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Bytes of one phase ("hash", "receive", ...) on one node."""

    node: str
    phase: str
    done_bytes: int
    total_bytes: int


T = TypeVar("T", bound=FrozenModel)
Tell = Callable[[Progress], None]


def follow(
    remote: Remote, verb: str, model: type[T], tell: Tell, *, silence_s: float = SILENCE_S, **values: Any
) -> T:
    """Blocks until the node's last line. Raises SparkctlError with its name."""
    with NodeStream(remote, verb, **values) as stream:
        while True:
            line = next_line(stream, remote.node, verb, silence_s)
            if "progress" in line:
                tell(_progress(remote.node, verb, line["progress"]))
            elif isinstance(line.get("done"), dict):
                return parse(model, remote.node, verb, line["done"])
            else:
                raise garbage(remote.node, verb, line)


def next_line(stream: NodeStream, node: str, verb: str, silence_s: float) -> Answer:
    try:
        line = stream.read(silence_s)
    except EOFError as error:
        raise NodeFailed(
            f"{verb} must end with a result, got an end without one: {error}.",
            hint="repeat the command: what is on disk is kept; look at the node's memory and log: dmesg -T",
            node=node,
        ) from error
    if line is None:
        raise NodeFailed(
            f"{verb} must report twice a second, got nothing for {silence_s:g} s.",
            hint="look at the node's disk and load: iostat -x 1, dmesg -T; then repeat: what is here is kept",
            node=node,
        )
    return line


def garbage(node: str, verb: str, line: Answer) -> NodeFailed:
    return NodeFailed(
        f"{verb} must answer with progress or a result, got {str(line)[:80]}.",
        hint="update sparkctl",
        node=node,
    )


def _progress(node: str, verb: str, value: Any) -> Progress:
    try:
        phase, done, total = value["phase"], value["done_bytes"], value["total_bytes"]
    except (KeyError, TypeError):
        raise garbage(node, verb, {"progress": value}) from None
    if not isinstance(phase, str) or type(done) is not int or type(total) is not int:
        raise garbage(node, verb, {"progress": value})
    return Progress(node=node, phase=phase, done_bytes=done, total_bytes=total)

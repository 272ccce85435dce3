"""Lines of all nodes' logs as they come: the tails first, merged by their time stamps, then what follows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from launcher.call_node import NodeStream
from launcher.connect import SshOptions, connect_all
from launcher.engine_log import parse_line
from launcher.errors import SparkctlError, UsageError
from launcher.log_lines import LogLines
from launcher.plan import LaunchPlan
from launcher.redact import Masker
from launcher.remote import Remote

READ_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    node: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """A line, the end of a node's tail (`line` None), or the end of its stream with an error."""

    node: str
    line: str | None = None
    ended: bool = False
    error: SparkctlError | None = None


def merge_logs(plans: Sequence[LaunchPlan], options: SshOptions, *, nodes: tuple[str, ...], lines: int,
               follow: bool, name: str, secrets: tuple[str, ...]) -> Iterator[NodeLine]:  # fmt: skip
    """Yields until every log is at its end; with `follow` until the run ended on every node.

    Secrets are masked here too, though the node wrote them masked. Raises the first node's error at the end,
    after the other nodes' lines were given.
    """
    everything = [(plan.run_id, node) for plan in plans for node in plan.nodes]
    chosen = [(run_id, node) for run_id, node in everything if not nodes or node.name in nodes]
    unknown = set(nodes) - {node.name for _, node in chosen}
    if unknown:
        known = ", ".join(node.name for _, node in everything)
        raise UsageError(
            f"--node must be one of {known}, got {', '.join(sorted(unknown))}", hint="sparkctl status"
        )
    masker = Masker(secrets)
    items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    with connect_all([node.node for _, node in chosen], options) as remotes:
        for run_id, node in chosen:
            request = {
                "state_path": node.state_path,
                "run_id": run_id,
                "lines": lines,
                "follow": follow,
                "name": name,
            }
            threading.Thread(target=_read, args=(remotes[node.name], request, items), daemon=True).start()
        if not follow:
            yield from _by_time(list(_collect(items, len(chosen))), masker)
            return
        for item in _collect(items, len(chosen)):
            yield NodeLine(node=item.node, line=masker.mask(item.line))


def _read(remote: Remote, request: dict[str, object], items: queue.SimpleQueue[_Item]) -> None:
    splitter = LogLines()
    try:
        with NodeStream(remote, "read_log", **request) as stream:
            while True:
                answer = stream.read(READ_S)
                if answer is None:
                    continue
                if "eof" in answer:
                    break
                for line in splitter.feed(answer["log"].encode("latin-1")):
                    items.put(_Item(node=remote.node, line=line))
    except EOFError:
        pass
    except SparkctlError as error:
        items.put(_Item(node=remote.node, ended=True, error=error))
        return
    for line in splitter.finish():
        items.put(_Item(node=remote.node, line=line))
    items.put(_Item(node=remote.node, ended=True))


@dataclass(frozen=True, slots=True)
class _Line:
    node: str
    line: str


def _collect(items: queue.SimpleQueue[_Item], num_nodes: int) -> Iterator[_Line]:
    first_error: SparkctlError | None = None
    while num_nodes:
        item = items.get()
        if item.line is not None:
            yield _Line(item.node, item.line)
        if item.ended:
            num_nodes -= 1
            first_error = first_error or item.error
    if first_error is not None:
        raise first_error


def _by_time(found: list[_Line], masker: Masker) -> Iterator[NodeLine]:
    """Stable merge: a line without a time belongs to the one before it on its node."""
    latest: dict[str, datetime] = {}
    keyed = []
    for order, item in enumerate(found):
        time = parse_line(item.line).time
        if time is not None:
            latest[item.node] = time
        keyed.append((latest.get(item.node, datetime.min), order, item))
    for _, _, item in sorted(keyed, key=lambda entry: entry[:2]):
        yield NodeLine(node=item.node, line=masker.mask(item.line))

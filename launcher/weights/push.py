"""Push: list on the source, room on every node, then all nodes receive from it at once over the fabric.

The launcher moves no weights: over SSH it carries the list with its hashes, a one-time token for each node,
and progress.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from launcher.call_node import NodeStream
from launcher.errors import PreflightRefused, UsageError
from launcher.remote import Remote
from launcher.run_on_all import Result, errors_of, group_by_reason, run_on_all
from launcher.topology import Node
from launcher.weights.file_list import FileList, Received, Stock
from launcher.weights.follow import Tell, follow, garbage, next_line
from launcher.weights.space import refuse_full_disks

T = TypeVar("T")
# Four streams filled a core each with recv, sha256 and write; see results/ and docs/weights.md.
NUM_STREAMS = 4
LISTEN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """`model_path` is absolute, or below each node's paths.models.

    `is_checkpoint`: index and shards must agree; else it is any directory of files.
    """

    source: Node
    targets: tuple[Node, ...]
    model_path: str
    leave_out: tuple[str, ...] = ()
    is_checkpoint: bool = True
    num_streams: int = NUM_STREAMS


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    files: FileList
    stocks: dict[str, Stock]
    received: dict[str, Received]


def push(job: Push, remotes: Mapping[str, Remote], tell: Tell) -> PushResult:
    """Blocks until every node has every file, or raises for those that have not; what is there is kept."""
    if any(node.name == job.source.name for node in job.targets):
        raise UsageError(f"the source {job.source.name} must not be its own target", hint="--from or --to")
    source = remotes[job.source.name]
    where: dict[str, Any] = {
        "models": job.source.paths.models,
        "model_path": job.model_path,
        "leave_out": list(job.leave_out),
    }
    files = follow(source, "weights_list", FileList, tell, is_checkpoint=job.is_checkpoint, **where)
    targets = {node.name: node for node in job.targets}
    to_targets = [remotes[name] for name in targets]

    def values(remote: Remote) -> dict[str, Any]:
        return {
            "models": targets[remote.node].paths.models,
            "model_path": job.model_path,
            "files": {name: entry.model_dump() for name, entry in files.files.items()},
            "origin": files.origin,
            "left_out": list(files.left_out),
            "whole": files.whole,
        }

    prepared = run_on_all(
        to_targets, lambda remote: follow(remote, "weights_prepare", Stock, tell, **values(remote))
    )
    stocks = values_of(prepared, "be ready for the weights")
    refuse_full_disks(stocks)
    lacking = [remote for remote in to_targets if stocks[remote.node].num_missing]
    received = dict.fromkeys(targets, Received(received_bytes=0, num_received=0))
    if lacking:
        tokens = {remote.node: secrets.token_hex(32) for remote in lacking}
        address = job.source.fabric.address
        with NodeStream(
            source, "weights_serve", address=address, tokens=list(tokens.values()), **where
        ) as serving:
            said = next_line(serving, source.node, "weights_serve", LISTEN_S)
            if type(said.get("listening")) is not int:
                raise garbage(source.node, "weights_serve", said)

            def receive(remote: Remote) -> Received:
                return follow(
                    remote,
                    "weights_receive",
                    Received,
                    tell,
                    source=source.node,
                    address=address,
                    port=said["listening"],
                    token=tokens[remote.node],
                    num_streams=job.num_streams,
                    **values(remote),
                )

            received |= values_of(run_on_all(lacking, receive), "receive the weights")
    return PushResult(files=files, stocks=stocks, received=received)


def at_models(node: Node, models: str) -> Node:
    """The same node whose models lie in another place: a push moves any directory of hashed files."""
    return node.model_copy(update={"paths": node.paths.model_copy(update={"models": models})})


def values_of(results: Mapping[str, Result[T]], what: str) -> dict[str, T]:
    """Raises one error that names every node that failed and why; a single failure keeps its own class."""
    errors = errors_of(results)
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        groups = group_by_reason(errors)
        hints = dict.fromkeys(hint for group in groups for hint in group.hints)
        error = PreflightRefused(
            f"Every node must {what}, got {len(errors)} that did not:\n" + "\n".join(map(str, groups)),
            hint="; ".join(hints),
        )
        error.exit_code = next(iter(errors.values())).exit_code
        raise error
    return {node: result.unwrap() for node, result in results.items()}

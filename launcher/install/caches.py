"""Push compile caches: one node's kernels to the nodes on which they run as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.errors import PreflightRefused, UsageError
from launcher.frozen_model import FrozenModel
from launcher.remote import Remote
from launcher.run_on_all import run_on_all
from launcher.topology import Node
from launcher.weights.follow import Tell, follow
from launcher.weights.push import Push, at_models, push, values_of
from launcher.weights.space import RESERVE_BYTES


class CacheFacts(FrozenModel):
    """`depends_on`: architecture, gpu, driver, engine; kernels fit where all are equal."""

    depends_on: dict[str, str]
    num_files: int
    total_bytes: int
    free_bytes: int


class Packed(FrozenModel):
    archive_id: str
    num_files: int
    digest: str


class Unpacked(FrozenModel):
    num_files: int
    num_new: int
    digest: str


class Forgotten(FrozenModel):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedCaches:
    """`skipped`: node -> what differs there."""

    source: str
    total_bytes: int
    digest: str
    received: dict[str, Unpacked]
    skipped: dict[str, str]


def push_caches(
    source: Node, targets: tuple[Node, ...], remotes: Mapping[str, Remote], tell: Tell
) -> PushedCaches:
    """Blocks. Raises when no node is equal, a disk has no room, or files differ afterwards."""
    if any(node.name == source.name for node in targets):
        raise UsageError(f"the source {source.name} must not be its own target", hint="--from or --to")
    nodes = {node.name: node for node in (source, *targets)}
    asked = run_on_all(
        [remotes[name] for name in nodes], lambda remote: _facts(nodes[remote.node], remote, tell)
    )
    facts = values_of(asked, "tell what its kernels depend on")
    own = facts[source.name]
    skipped = {node.name: why for node in targets if (why := _difference(own, facts[node.name]))}
    equals = tuple(node for node in targets if node.name not in skipped)
    if not equals:
        listed = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise PreflightRefused(
            f"Kernels of {source.name} must have a node that is equal to it, got none: {listed}",
            hint="sparkctl install makes engines equal; sparkctl doctor compares drivers",
        )
    _refuse_full_disks(source, equals, facts)
    packed = follow(remotes[source.name], "caches_pack", Packed, tell, cache=source.paths.cache)
    places = [at_models(node, f"{node.paths.cache}/kernels") for node in (source, *equals)]
    push(Push(source=places[0], targets=tuple(places[1:]), model_path=packed.archive_id, is_checkpoint=False),
         remotes, tell)  # fmt: skip

    def unpack(remote: Remote) -> Unpacked:
        cache = nodes[remote.node].paths.cache
        return follow(remote, "caches_unpack", Unpacked, tell, cache=cache, archive_id=packed.archive_id)

    received = values_of(run_on_all([remotes[node.name] for node in equals], unpack), "unpack the kernels")
    refuse_other_files(packed, received)
    follow(remotes[source.name], "caches_forget", Forgotten, tell, cache=source.paths.cache,
           archive_id=packed.archive_id)  # fmt: skip
    return PushedCaches(
        source=source.name,
        total_bytes=own.total_bytes,
        digest=packed.digest,
        received=received,
        skipped=skipped,
    )


def refuse_other_files(packed: Packed, received: Mapping[str, Unpacked]) -> None:
    wrong = [name for name, item in received.items() if item.digest != packed.digest]
    if wrong:
        raise PreflightRefused(
            f"Every node must have the kernels with hash {packed.digest[:16]}..., "
            f"got others on {', '.join(wrong)}.",
            hint="an engine compiles there: sparkctl down, then repeat",
        )


def _facts(node: Node, remote: Remote, tell: Tell) -> CacheFacts:
    return follow(remote, "caches_facts", CacheFacts, tell, engine=node.paths.engine, cache=node.paths.cache)


def _difference(source: CacheFacts, other: CacheFacts) -> str:
    return ", ".join(
        f"{key} must be {value}, got {other.depends_on.get(key, 'none')}"
        for key, value in source.depends_on.items()
        if other.depends_on.get(key) != value
    )


def _refuse_full_disks(source: Node, targets: tuple[Node, ...], facts: Mapping[str, CacheFacts]) -> None:
    """An archive on the source; archive and files on the others. The reserve covers the archive's headers."""
    total = facts[source.name].total_bytes
    needed = {source.name: total} | {node.name: 2 * total for node in targets}
    short = [
        f"{name} needs {num_bytes} bytes, got {facts[name].free_bytes} free"
        for name, num_bytes in needed.items()
        if num_bytes + RESERVE_BYTES > facts[name].free_bytes
    ]
    if short:
        raise PreflightRefused(
            f"Every node must have room for the kernels before anything is copied: {'; '.join(short)}.",
            hint="make room, or set paths.cache of that node to a larger disk",
        )

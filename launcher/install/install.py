"""Install: one node gets the wheels, the others receive them from it, all build offline and must be equal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import PreflightRefused
from launcher.frozen_model import FrozenModel
from launcher.remote import Remote
from launcher.run_on_all import run_on_all
from launcher.topology import Node
from launcher.weights.follow import Tell, follow
from launcher.weights.push import Push, push, values_of


class Wheels(FrozenModel):
    directory: str
    num_files: int
    total_bytes: int


class Installed(FrozenModel):
    """`digest` is equal on two nodes when versions and files of every package are."""

    directory: str
    was_there: bool
    packages: dict[str, str]
    digest: str


class RolledBack(FrozenModel):
    directory: str
    left: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """`lock` is the text: NAME==VERSION --hash=sha256:... a line. `python` is run on the nodes."""

    nodes: tuple[Node, ...]
    lock: str
    python: str
    wheels: str | None = None

    @property
    def lock_id(self) -> str:
        return hashlib.sha256(self.lock.encode()).hexdigest()[:12]


def install(job: Install, remotes: Mapping[str, Remote], tell: Tell) -> dict[str, Installed]:
    """Blocks; raises unless every node has the same packages. What was done before is kept."""
    first, others = job.nodes[0], job.nodes[1:]
    common: dict[str, Any] = {"lock_id": job.lock_id, "lock": job.lock, "python": job.python}
    wheels = follow(remotes[first.name], "install_wheels", Wheels, tell, cache=first.paths.cache,
                    source=job.wheels, **common)  # fmt: skip
    if others:
        as_models = tuple(_wheels_as_models(node) for node in job.nodes)
        push(Push(source=as_models[0], targets=as_models[1:], model_path=job.lock_id, is_checkpoint=False),
             remotes, tell)  # fmt: skip
    assert wheels.num_files
    paths = {node.name: node.paths for node in job.nodes}

    def build(remote: Remote) -> Installed:
        own = paths[remote.node]
        return follow(remote, "install_engine", Installed, tell, engine=own.engine, cache=own.cache, **common)

    found = values_of(run_on_all([remotes[node.name] for node in job.nodes], build), "build the engine")
    refuse_differences(found)
    return found


def refuse_differences(found: Mapping[str, Installed]) -> None:
    """The first node's packages count."""
    first = next(iter(found.values()))
    other = [node for node, item in found.items() if item.digest != first.digest]
    if other:
        raise PreflightRefused(
            f"Every node must have the same files in its environment, got others on {', '.join(other)}.",
            hint="build it anew there: rm -r the directory that sparkctl install names, then repeat",
        )


def rollback(nodes: Sequence[Node], remotes: Mapping[str, Remote], tell: Tell) -> dict[str, RolledBack]:
    engines = {node.name: node.paths.engine for node in nodes}

    def one(remote: Remote) -> RolledBack:
        return follow(remote, "install_rollback", RolledBack, tell, engine=engines[remote.node])

    return values_of(run_on_all([remotes[node.name] for node in nodes], one), "go back to the earlier engine")


def _wheels_as_models(node: Node) -> Node:
    """The same node whose models lie where its wheels do: a push moves any directory of hashed files."""
    paths = node.paths.model_copy(update={"models": f"{node.paths.cache}/wheels"})
    return node.model_copy(update={"paths": paths})

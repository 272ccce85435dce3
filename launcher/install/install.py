"""Install: one node gets the wheels, the others receive them from it, all build offline and must be equal."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import PreflightRefused
from launcher.frozen_model import FrozenModel
from launcher.install.extension import BuiltExtension, Extension
from launcher.remote import Remote
from launcher.run_on_all import run_on_all
from launcher.topology import Node
from launcher.weights.follow import Tell, follow
from launcher.weights.push import Push, at_models, push, values_of


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
    extension: Extension | None = None

    @property
    def lock_id(self) -> str:
        return hashlib.sha256(self.lock.encode()).hexdigest()[:12]


def install(job: Install, remotes: Mapping[str, Remote], tell: Tell) -> dict[str, Installed]:
    """Blocks; raises unless every node has the same packages. What was done before is kept."""
    first = job.nodes[0]
    common: dict[str, Any] = {"lock_id": job.lock_id, "lock": job.lock, "python": job.python}
    follow(remotes[first.name], "install_wheels", Wheels, tell, cache=first.paths.cache,
           source=job.wheels, **common)  # fmt: skip
    _push_wheels(job.nodes, job.lock_id, remotes, tell)
    if job.extension is not None:
        made = _make_extension(job, job.extension, remotes[first.name], tell)
        _push_wheels(job.nodes, f"sparkctl-{made.extension_id}", remotes, tell)
        common["extension"] = {"extension_id": made.extension_id, "sha256": made.sha256}
    paths = {node.name: node.paths for node in job.nodes}

    def build(remote: Remote) -> Installed:
        own = paths[remote.node]
        return follow(remote, "install_engine", Installed, tell, engine=own.engine, cache=own.cache, **common)

    found = values_of(run_on_all([remotes[node.name] for node in job.nodes], build), "build the engine")
    refuse_differences(found)
    return found


def _make_extension(job: Install, extension: Extension, remote: Remote, tell: Tell) -> BuiltExtension:
    """One wheel, built or taken over on the first node: the others get this very file."""
    source = base64.b64encode(extension.source).decode() if extension.source else None
    return follow(remote, "install_extension", BuiltExtension, tell, cache=job.nodes[0].paths.cache,
                  python=job.python, source=source, wheel=extension.wheel, wheels=job.wheels)  # fmt: skip


def _push_wheels(nodes: tuple[Node, ...], name: str, remotes: Mapping[str, Remote], tell: Tell) -> None:
    if len(nodes) > 1:
        places = [at_models(node, f"{node.paths.cache}/wheels") for node in nodes]
        push(Push(source=places[0], targets=tuple(places[1:]), model_path=name, is_checkpoint=False),
             remotes, tell)  # fmt: skip


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

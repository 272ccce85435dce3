"""Fetch: one node downloads the checkpoint, or takes over one that it has already."""

from __future__ import annotations

import posixpath
import sys
from dataclasses import dataclass

from launcher.remote import Remote
from launcher.topology import Node
from launcher.weights.file_list import Fetched
from launcher.weights.follow import Tell, follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """`python` on the node has huggingface_hub; None: the engine's."""

    node: Node
    model_path: str
    repo: str
    revision: str | None = None
    python: str | None = None


def fetch(job: Fetch, remote: Remote, tell: Tell) -> Fetched:
    """Blocks until every file is here with the hub's hash; repeating continues what was cut off."""
    pythons = [job.python] if job.python else [posixpath.join(job.node.paths.engine, "bin/python")]
    if remote.is_local and job.python is None:
        pythons.append(sys.executable)
    return follow(
        remote,
        "weights_fetch",
        Fetched,
        tell,
        models=job.node.paths.models,
        model_path=job.model_path,
        repo=job.repo,
        revision=job.revision,
        pythons=pythons,
    )


def adopt(node: Node, model_path: str, source: str, remote: Remote, tell: Tell) -> Fetched:
    """`source` is a directory on that node."""
    return follow(
        remote, "weights_adopt", Fetched, tell, models=node.paths.models, model_path=model_path, source=source
    )

"""Dispatch of the verbs that `sparkctl install` sends to a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher.node.answer import Refused
from launcher.node.install_caches import caches_facts, caches_forget, caches_pack, caches_unpack
from launcher.node.install_engine import install_engine, install_rollback
from launcher.node.install_extension import install_extension
from launcher.node.install_wheels import install_wheels

VERBS: dict[str, Callable[..., None]] = {
    "install_wheels": install_wheels,
    "install_extension": install_extension,
    "install_engine": install_engine,
    "install_rollback": install_rollback,
    "caches_facts": caches_facts,
    "caches_pack": caches_pack,
    "caches_unpack": caches_unpack,
    "caches_forget": caches_forget,
}


def install_verb(verb: str, request: dict[str, Any]) -> None:
    if verb not in VERBS:
        raise Refused(f"verb must be one the node code knows, got {verb!r}", "update sparkctl")
    VERBS[verb](**request)

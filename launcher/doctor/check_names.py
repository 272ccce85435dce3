"""Every name that `--skip` takes: the doctor's checks, and those of `up` itself."""

from __future__ import annotations

from launcher.doctor.collective_result import CHECK
from launcher.doctor.examine import ANSWER, CHECKS, TOOL
from launcher.doctor.memory_fit import MEMORY_CHECKS
from launcher.errors import UsageError

# What `up` checks itself (launcher/preflight.py), and what holds when it is ok.
LAUNCH_CHECKS = {
    "not-supported": "this version of sparkctl can carry out every setting of the recipe",
    "earlier-run": "no earlier run lives on the node (F13, F14)",
    "state-directory": "paths.state can keep a run: writable, with 64 MiB free",
    "engine": "the engine is installed where paths.engine says",
    "engine-version": "SGLang has the version that the recipe names",
    "engine-plugin": "the engine's environment has sparkctl's plugin",
    "model": "the checkpoint is on the node, with every file that its index names",
    "engram-tables": "the packed Engram tables of the node's ranks are where the recipe says",
    "port": "the ports of API and rendezvous are free",
    "interface": "fabric.interface exists on the node",
    "fabric-address": "fabric.address is an address of fabric.interface",
    "recipe-lock": "recipe, engine, extension and model are what the recipe's lock pins (docs/sharing.md)",
    "same-versions": "sglang, sparkctl and torch have one version on all nodes",
}
# Looked at when a token was generated, before `up` says ready (launcher/audit_run.py).
AUDIT = "audit"


def check_names() -> frozenset[str]:
    return frozenset(
        {*(item.id for item in CHECKS), ANSWER, TOOL, CHECK, AUDIT, *LAUNCH_CHECKS, *MEMORY_CHECKS}
    )


def known_checks(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same names. Raises UsageError for one that is no check: a typing error must not skip nothing in
    silence."""
    for name in names:
        if name not in check_names():
            raise UsageError(
                f"--skip must name a check, got {name!r}", hint=f"one of: {', '.join(sorted(check_names()))}"
            )
    return names

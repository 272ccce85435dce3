"""Every name that `--skip` takes: the doctor's checks, and those of `up` itself."""

from __future__ import annotations

from launcher.doctor.collective_result import CHECK
from launcher.doctor.examine import ANSWER, CHECKS, TOOL
from launcher.doctor.memory_fit import MEMORY_CHECKS
from launcher.errors import UsageError

# What `up` checks itself (launcher/preflight.py): what holds when it is ok, what happens otherwise, and
# what to do.
LAUNCH_CHECKS = {
    "not-supported": (
        "this version of sparkctl can carry out every setting of the recipe",
        "the setting would be ignored, and another model served than the one that was asked for",
        "leave it out, or take another recipe: sparkctl recipe list",
    ),
    "evidence": (
        "somebody has run the recipe on such machines, and its files are under results/",
        "what the machine cannot do shows at boot: hooks and kernels are checked there, and end it by name",
        "sparkctl logs has the message of a rank that ended; once it serves: sparkctl results publish",
    ),
    "draft-widths": (
        "widths of drafts are decided on an engine that has done so before (extensions.dspark.width)",
        "boot proves the hooks and that the cost tables are equal, not that a GPU computes the same text",
        'compare greedy replies with custom_params {"spec": "off"} and without, or set width: block',
    ),
    "earlier-run": (
        "no earlier run lives on the node",
        "it holds memory and ports, and a new worker may join its old head",
        "sparkctl down --run RUN_ID, or sparkctl up --replace",
    ),
    "state-directory": (
        "paths.state can keep a run: writable, with 64 MiB free",
        "the node's part of the run cannot be started, and later not be ended",
        "make room there, or give the node another paths.state in the topology",
    ),
    "engine": (
        "the engine is installed where paths.engine says",
        "the node's rank cannot start, and the others wait for it",
        "sparkctl install, or set paths.engine of the node in the topology",
    ),
    "engine-version": (
        "SGLang has the version that the recipe names",
        "options and the extension's hooks are made for that version",
        "sparkctl install, or engine.sglang_version in the recipe",
    ),
    "engine-plugin": (
        "the engine's environment has sparkctl's plugin",
        "the engine starts without it: no rank reports, no Engram rows, no audit",
        "sparkctl install, or pip install --no-deps sparkctl there",
    ),
    "router": (
        "where the router of several groups runs, paths.engine has the sglang-router that is known",
        "the groups load for minutes, and nothing stands before them",
        "pip install --no-deps sglang-router there, with the version that the finding prints",
    ),
    "model": (
        "the checkpoint is on the node, with every file that its index names",
        "the engine ends after minutes, when it comes to the shard that is not there",
        "sparkctl weights fetch or push, or paths.models of the node in the topology",
    ),
    "engram-tables": (
        "the packed Engram tables of the node's ranks are where the recipe says",
        "the rank cannot read its rows; it never reads those of another",
        "sparkctl engram pack, with the words that the finding prints",
    ),
    "port": (
        "the ports of API and rendezvous are free",
        "the engine ends when it comes to listen, after it has loaded everything",
        "ss -ltnp names who holds the port; choose another with --port",
    ),
    "interface": (
        "fabric.interface exists on the node",
        "NCCL and Gloo take another interface, or end",
        "correct it in the topology: sparkctl topology show",
    ),
    "fabric-address": (
        "fabric.address is an address of fabric.interface",
        "the ranks look for this node where it is not",
        "correct it in the topology, or give the interface its address (netplan)",
    ),
    "same-versions": (
        "sglang, sparkctl and torch have one version on all nodes",
        "ranks that run different code give different answers, or hang",
        "sparkctl install",
    ),
    "recipe-lock": (
        "recipe, engine, extension and model are what the recipe's lock pins (docs/sharing.md)",
        "what runs is not what was measured and shared",
        "bring back what was locked, or pin what is there (sparkctl recipe lock), or sparkctl up --unlocked",
    ),
}
# Looked at when a token was generated, before `up` says ready (launcher/audit_run.py).
AUDIT = "audit"


def check_names() -> frozenset[str]:
    return frozenset(
        {*(item.id for item in CHECKS), ANSWER, TOOL, CHECK, AUDIT, *LAUNCH_CHECKS, *MEMORY_CHECKS}
    )


def known_checks(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same names. Raises UsageError for one that is no check:
    a typing error must not skip nothing in silence."""
    for name in names:
        if name not in check_names():
            raise UsageError(
                f"--skip must name a check, got {name!r}", hint=f"one of: {', '.join(sorted(check_names()))}"
            )
    return names

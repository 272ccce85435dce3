"""Every name that `--skip` takes: the doctor's checks, and those of `up` itself."""

from __future__ import annotations

from launcher.doctor.collective_result import CHECK
from launcher.doctor.examine import ANSWER, CHECKS, TOOL

LAUNCH_CHECKS = (
    "not-supported",
    "earlier-run",
    "state-directory",
    "engine",
    "engine-version",
    "engine-plugin",
    "model",
    "port",
    "interface",
    "fabric-address",
    "same-versions",
)


def check_names() -> frozenset[str]:
    return frozenset({*(item.id for item in CHECKS), ANSWER, TOOL, CHECK, *LAUNCH_CHECKS})

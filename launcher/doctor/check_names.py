"""Every name that `--skip` takes: the doctor's checks, and those of `up` itself."""

from __future__ import annotations

from launcher.doctor.collective_result import CHECK
from launcher.doctor.examine import ANSWER, CHECKS, TOOL
from launcher.errors import UsageError

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


def known_checks(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same names. Raises UsageError for one that is no check: a typing error must not skip nothing in silence."""
    for name in names:
        if name not in check_names():
            raise UsageError(
                f"--skip must name a check, got {name!r}", hint=f"one of: {', '.join(sorted(check_names()))}"
            )
    return names

"""Which environment variables a recipe or topology may set, and why the others may not."""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.config_problem import ConfigProblem
from launcher.forbidden_settings import forbidden_variable

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The launcher sets these on every node from the topology. One value for all nodes is what breaks clusters
# whose port names, addresses or GID indices differ per node.
OWNED_NAMES: Mapping[str, str] = {
    "NCCL_SOCKET_IFNAME": "fabric.socket_interface of the node in the topology",
    "GLOO_SOCKET_IFNAME": "fabric.socket_interface of the node in the topology",
    "SGLANG_HOST_IP": "fabric.address of the node in the topology",
    "NCCL_IB_HCA": "fabric.hcas of the node in the topology",
    "NCCL_IB_GID_INDEX": "fabric.gid_index of the node in the topology",
}
OWNED_PREFIX = "SPARKCTL_"


def environment_problems(environment: Mapping[str, str]) -> list[ConfigProblem]:
    """Every entry that is badly named, belongs to the launcher, or is known to corrupt output."""
    problems = []
    for name, value in environment.items():
        problem = _problem_of(name, value)
        if problem is not None:
            problems.append(problem)
    return problems


def _problem_of(name: str, value: str) -> ConfigProblem | None:
    at = ("environment", name)
    if not _NAME.fullmatch(name):
        return ConfigProblem(
            at=at, message=f"environment name must be letters, digits and underscores, got {name!r}"
        )
    if "\0" in value or "\n" in value:
        return ConfigProblem(at=at, message=f"{name} must be one line without NUL bytes, got {value!r}")
    if name in OWNED_NAMES:
        return ConfigProblem(
            at=at,
            message=f"{name} must be left to sparkctl, which sets it on each node, got {value!r}",
            hint=f"set {OWNED_NAMES[name]} instead",
        )
    if name.startswith(OWNED_PREFIX):
        return ConfigProblem(
            at=at,
            message=f"{name} must not be set, got {value!r}: names with {OWNED_PREFIX} are the run's own",
            hint="remove it; sparkctl derives it from the recipe and the topology",
        )
    return forbidden_variable(name, value)

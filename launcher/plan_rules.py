"""What must hold in a plan whoever wrote it: `up --plan` carries out a file that a person may have edited."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.image_digest import DIGEST_FORM, has_digest

if TYPE_CHECKING:
    from launcher.plan import LaunchPlan, NodePlan

# It names directories, and a container, on every node.
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ENGINE = "sglang.launch_server"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RUN_ID_FORM = "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit"


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


def plan_problem(plan: LaunchPlan) -> str | None:
    """The first thing that makes `plan` one that nobody could carry out."""
    if not is_run_id(plan.run_id):
        return f"run_id must be {RUN_ID_FORM}, got {plan.run_id[:80]!r}"
    if not plan.nodes:
        return "nodes must be a list of at least 1, got 0"
    if not 1 <= plan.api.port <= 65535:
        return f"api.port must be 1 to 65535, got {plan.api.port}"
    names = [node.name for node in plan.nodes]
    if len(set(names)) < len(names):
        return f"node names must differ, got {', '.join(names)}"
    ranks = [rank for node in plan.nodes for rank in node.ranks]
    if plan.is_router:
        if len(names) > 1 or ranks:
            return f"a router must be one node without ranks, got {', '.join(names)} and ranks {ranks}"
    elif sorted(ranks) != list(range(len(ranks))) or not all(node.ranks for node in plan.nodes):
        return f"ranks must be 0, 1, 2 and so on, each on one node, got {ranks}"
    problems = (
        _node_problem(node, index) or _image_problem(plan.runtime, node, index)
        for index, node in enumerate(plan.nodes)
    )
    return next(filter(None, problems), None)


def _node_problem(node: NodePlan, index: int) -> str | None:
    where = f"nodes.{index}"
    if node.node_rank != index or node.is_head != (index == 0):
        return (
            f"{where} must have node_rank {index} and is_head {index == 0},"
            f" got {node.node_rank} and {node.is_head}"
        )
    if not node.state_path.startswith("/") or ".." in node.state_path.split("/"):
        return f"{where}.state_path must be an absolute path, got {node.state_path!r}"
    if not node.argv or not node.argv[0] or any("\0" in word for word in node.argv):
        return f"{where}.argv must be a command's words, none with a NUL, got {list(node.argv)[:3]}"
    for name, value in node.environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            return f"{where}.environment must map variable names to text, got {name!r}"
    return None


def _image_problem(runtime: str, node: NodePlan, index: int) -> str | None:
    """A recipe's image must carry its digest; so must one that a person wrote into the plan."""
    where = f"nodes.{index}"
    if (node.container is not None) != (runtime == "docker"):
        wanted = "a name" if runtime == "docker" else "null"
        return f"{where}.container must be {wanted} with runtime {runtime}, got {node.container!r}"
    if runtime != "docker":
        return None
    words = node.argv[: node.argv.index(ENGINE)] if ENGINE in node.argv else ()
    if len(words) < 4 or words[:2] != ("docker", "run"):
        return f"{where}.argv must be docker run ... IMAGE python3 -m {ENGINE} ..., got {list(node.argv)[:3]}"
    image = words[-3]
    return None if has_digest(image) else f"{where}.argv must name its image as {DIGEST_FORM}, got {image!r}"

"""What the engine of a node is made of: content hashes, versions, NCCL libraries, docker. Read-only."""

from __future__ import annotations

import json
import pkgutil
import re
from typing import Any

from launcher.node.probe_root import ProbeRoot

LIBRARY_DIRECTORIES = (
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
)
# Thousands of small files: a cold or busy disk needs seconds.
IDENTITY_TIMEOUT_S = 15.0


def software_facts(
    root: ProbeRoot, *, engine_python: str, runtime: str, image: str | None, environment: dict[str, Any]
) -> dict[str, Any]:
    """`environment`: the engine's own, for the places where a loader would look for libraries first."""
    return {
        "identity": _identity(root, engine_python) if runtime != "docker" else None,
        "system_nccl": _nccl_below(root, LIBRARY_DIRECTORIES),
        "preferred_nccl": _nccl_preferred(root, environment),
        "docker": _docker(root, image) if runtime == "docker" else None,
        "containers": _containers(root),
    }


def _identity(root: ProbeRoot, python: str) -> dict[str, Any]:
    """Asked of the engine's own Python, which knows where its packages are; it imports none of them."""
    code = (pkgutil.get_data("launcher.node", "engine_identity.py") or b"").decode()
    said = root.program(python, "-c", code, timeout_s=IDENTITY_TIMEOUT_S)
    try:
        found = json.loads(said.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"problem": f"{python}: {said.first_line}"}
    return found if isinstance(found, dict) else {"problem": f"{python} answered no object"}


def _nccl_below(root: ProbeRoot, directories: tuple[str, ...]) -> list[str]:
    return [
        f"{directory}/{name}"
        for directory in directories
        for name in root.names(directory)
        if re.match(r"libnccl\.so", name)
    ]


def _nccl_preferred(root: ProbeRoot, environment: dict[str, Any]) -> list[str]:
    """NCCL libraries that LD_LIBRARY_PATH or LD_PRELOAD put before the one that the engine was built with."""
    places = tuple(item for item in environment.get("LD_LIBRARY_PATH", "").split(":") if item)
    preloaded = [item for item in re.split(r"[: ]", environment.get("LD_PRELOAD", "")) if "libnccl" in item]
    return [*_nccl_below(root, places), *preloaded]


def _docker(root: ProbeRoot, image: str | None) -> dict[str, Any]:
    said = root.tool("docker", "image", "inspect", "--format", "{{.Id}}", image or "")
    return {"problem": None if said.is_good else said.first_line, "image_id": said.stdout.strip() or None}


def _containers(root: ProbeRoot) -> list[str]:
    """Running containers; nothing where there is no docker or no right to ask."""
    said = root.tool("docker", "ps", "--format", "{{.Names}} {{.Image}}", is_needed=False)
    return said.stdout.splitlines()[:20] if said.is_good else []

"""What lies under a results directory: finished runs, unfinished ones, and measurements of components."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.errors import ResultWrong, UsageError
from launcher.results.manifest import MANIFEST_NAME
from launcher.results.run_directory import REQUESTS, read_manifest

Kind = Literal["run", "unfinished", "wrong", "component"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedResult:
    """`note` says what is wrong, or what a directory is that holds no run. Nothing is verified."""

    name: str
    kind: Kind
    protocol: str | None = None
    suites: tuple[str, ...] = ()
    model: str | None = None
    recipe: str | None = None
    num_nodes: int | None = None
    started_at: str | None = None
    seal: str | None = None
    note: str = ""


def list_results(root: Path) -> tuple[ListedResult, ...]:
    """By name. Raises UsageError when there is no such directory."""
    if not root.is_dir():
        raise UsageError(f"{root} must be a directory with results, got none", hint="sparkctl bench --help")
    return tuple(
        _describe(path) for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink()
    )


def _describe(path: Path) -> ListedResult:
    if not os.path.lexists(path / MANIFEST_NAME):
        if os.path.lexists(path / REQUESTS):
            return ListedResult(name=path.name, kind="unfinished", note=f"sparkctl bench --resume {path}")
        return ListedResult(name=path.name, kind="component", note="no bench run")
    try:
        manifest, _ = read_manifest(path)
    except ResultWrong as error:
        return ListedResult(name=path.name, kind="wrong", note=error.message)
    return ListedResult(
        name=path.name,
        kind="run",
        protocol=manifest.protocol,
        suites=manifest.suites,
        model=manifest.served_model,
        recipe=manifest.recipe.name if manifest.recipe else None,
        num_nodes=len(manifest.nodes) or None,
        started_at=manifest.started_at,
        seal=manifest.seal,
    )

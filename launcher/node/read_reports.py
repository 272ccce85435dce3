"""What the plugin wrote on this node's ranks: the reports of a run, and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.node.answer import Refused
from launcher.node.run_dir import read_json, runs_root


def read_reports(*, state_path: str, run_id: str) -> dict[str, Any]:
    """{"reports": {name: report}, "refusals": {name: refusal}, "damaged": {name: why}}."""
    run_dir = runs_root(state_path) / run_id
    if not run_dir.is_dir():
        raise Refused(f"this node has nothing of run {run_id}", "sparkctl status --all")
    found: dict[str, Any] = {"reports": {}, "refusals": {}, "damaged": {}}
    for path in sorted((run_dir / "reports").glob("*.json")):
        try:
            value = _read(path)
        except ValueError as error:
            found["damaged"][path.name] = str(error)
            continue
        found["refusals" if path.name.startswith("refusal-") else "reports"][path.name] = value
    return found


def _read(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if value is None:
        raise ValueError("it was removed while it was read")
    return value

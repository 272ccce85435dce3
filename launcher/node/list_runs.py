"""The runs this node knows, and whether they live.

status: `serving-or-loading` is for the launcher to tell apart; here a run is
  running    supervisor and engine live
  orphaned   processes of the run live, but their supervisor is gone
  frozen     the supervisor is stopped (SIGSTOP)
  ended      nothing of it lives
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from launcher.node.processes import Process, boot_id, run_processes, same_process
from launcher.node.run_dir import read_state, runs_root


def describe_run(run_dir: Path) -> dict[str, Any]:
    """State of one run plus what of it lives now. A damaged state.json is reported, not hidden."""
    try:
        state = read_state(run_dir)
    except ValueError as error:
        return {
            "run_id": run_dir.name,
            "status": "damaged",
            "problem": str(error),
            "processes": [],
            "started": "?",
        }
    if state is None:
        return {"run_id": run_dir.name, "status": "ended", "processes": [], "started": "?", "state": {}}
    alive = living_processes(run_dir.name, state)
    supervisor = same_process(state.get("supervisor_pid", -1), state.get("supervisor_start_ticks", -1))
    if not alive:
        starting = state.get("phase") == "starting" and time.time() - state["started_unix"] < 10
        status = "starting" if starting and state["boot_id"] == boot_id() else "ended"
    elif supervisor is None:
        status = "orphaned"
    elif supervisor.state in "Tt":
        status = "frozen"
    else:
        status = "running"
    return {
        "run_id": run_dir.name,
        "status": status,
        "started": state.get("started", "?"),
        "state": state,
        "processes": [{"pid": p.pid, "state": p.state, "title": p.title[:200]} for p in alive],
    }


def living_processes(run_id: str, state: dict[str, Any]) -> list[Process]:
    """None can live when the node was booted since."""
    if state.get("boot_id") != boot_id():
        return []
    return run_processes(
        run_id, state["node"], state.get("supervisor_pid", -1), state.get("supervisor_start_ticks", -1)
    )


def live_runs(state_path: str) -> list[dict[str, Any]]:
    root = runs_root(state_path)
    if not root.is_dir():
        return []
    described = (describe_run(path) for path in sorted(root.iterdir()) if path.is_dir())
    return [run for run in described if run["status"] not in ("ended", "damaged")]


def list_runs(*, state_path: str, run_id: str | None = None) -> dict[str, Any]:
    """All runs, newest first, or the one of that id."""
    root = runs_root(state_path)
    if not root.is_dir():
        return {"runs": []}
    paths = sorted((path for path in root.iterdir() if path.is_dir()), reverse=True)
    return {"runs": [describe_run(path) for path in paths if run_id in (None, path.name)]}

"""End a run on this node: ask its supervisor, then end what is left, then wait until memory is back."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.node.end_processes import end_container, end_processes, remove_shared_memory
from launcher.node.list_runs import living_processes
from launcher.node.node_lock import node_lock
from launcher.node.processes import boot_id, memory_available_bytes, same_process, shared_memory_files
from launcher.node.run_dir import read_state, remove_what_only_a_living_run_needs, runs_root, write_state

MEMORY_BACK_FRACTION = 0.9  # of what was available before the start; other programs may have grown meanwhile


def stop_run(*, state_path: str, run_id: str, node: str, timeout_s_supervisor: float, memory_timeout_s: float,
             refuse_start: bool = False) -> dict[str, Any]:  # fmt: skip
    """Idempotent. Returns what was ended, what is left, and whether memory came back.

    `node`: the node's name, in case the run's own record of it is damaged.
    `timeout_s_supervisor`: how long the supervisor may take before everything is SIGKILLed from here.
    `refuse_start`: a start of this run that is still on its way to this node finds the run ended.
    """
    run_dir = runs_root(state_path) / run_id
    if refuse_start:
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not run_dir.is_dir():
        return {"found": False, "ended": [], "left": []}
    with node_lock(state_path):  # a start that is going on is waited for: it is over in a moment
        return _stop(run_dir, _state(run_dir, node), timeout_s_supervisor, memory_timeout_s)


def _state(run_dir: Path, node: str) -> dict[str, Any]:
    """What is needed to find the run's processes, also when state.json is damaged or was never written."""
    try:
        state = read_state(run_dir)
    except ValueError:
        state = None
    return state or {"run_id": run_dir.name, "node": node, "boot_id": boot_id(), "phase": "unknown"}


def _stop(
    run_dir: Path, state: dict[str, Any], timeout_s_supervisor: float, memory_timeout_s: float
) -> dict[str, Any]:
    run_id = run_dir.name
    before = living_processes(run_id, state)
    shared_memory = shared_memory_files([process.pid for process in before])
    if state["boot_id"] == boot_id():
        shared_memory |= set(state.get("shared_memory", ()))
    if before:
        _ask_supervisor(state, timeout_s_supervisor)
    if state.get("container") and living_processes(run_id, state):
        end_container(state["container"])
    left = end_processes(lambda: living_processes(run_id, state), timeout_s=3.0)
    removed = remove_shared_memory(shared_memory)
    state = _record_end(run_dir, state, bool(before))
    return {
        "found": True,
        "ended": [{"pid": p.pid, "title": p.title[:200]} for p in before],
        "left": [{"pid": p.pid, "title": p.title[:200], "state": p.state} for p in left],
        "shared_memory_removed": sorted({*removed, *state.get("shared_memory_removed", [])}),
        "end": state.get("end"),
        **_wait_for_memory(state, memory_timeout_s if before and has_gpu() else 0.0),
    }


def _ask_supervisor(state: dict[str, Any], timeout_s: float) -> None:
    supervisor = same_process(state.get("supervisor_pid", -1), state.get("supervisor_start_ticks", -1))
    if supervisor is None or supervisor.state in "Tt":
        return  # gone or frozen: it cannot act, so the caller ends everything
    with suppress(ProcessLookupError):
        os.kill(supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and same_process(supervisor.pid, supervisor.start_ticks):
        time.sleep(0.03)


def _record_end(run_dir: Path, state: dict[str, Any], was_alive: bool) -> dict[str, Any]:
    """The supervisor records its own end; when it could not, say that we ended the run."""
    state = _state(run_dir, state["node"])
    remove_what_only_a_living_run_needs(run_dir)
    if state["phase"] != "ended":
        what = (
            "ended by sparkctl down without the help of its supervisor"
            if was_alive
            else "found dead by sparkctl down"
        )
        state.update(
            phase="ended", end=state.get("end") or {"kind": "stopped", "what": what, "at_unix": time.time()}
        )
        write_state(run_dir, state)
    return state


def has_gpu() -> bool:
    """Only a GPU's pages come back late; a process's own are back when it is gone."""
    return Path("/dev/nvidiactl").exists()


def _wait_for_memory(state: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """On unified memory the GPU's pages come back after the processes are gone; the next start needs them.

    Without a GPU they were back with the last process: what is missing, other programs have taken.
    """
    wanted = int(state.get("memory_available_before_bytes", 0) * MEMORY_BACK_FRACTION)
    deadline = time.monotonic() + timeout_s
    while (available := memory_available_bytes()) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return {
        "memory_available_bytes": available,
        "memory_wanted_bytes": wanted,
        "memory_back": available >= wanted or not has_gpu(),
    }

"""End a run on this node: ask its supervisor, then end what is left, then wait until memory is back."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from launcher.node.end_processes import end_processes, remove_shared_memory
from launcher.node.list_runs import living_processes
from launcher.node.processes import memory_available_bytes, same_process, shared_memory_files
from launcher.node.run_dir import forget_secrets, read_state, runs_root, write_state

MEMORY_BACK_FRACTION = 0.9  # of what was available before the start; other programs may have grown meanwhile


def stop_run(*, state_path: str, run_id: str, timeout_s_supervisor: float, memory_timeout_s: float) -> dict:
    """Idempotent. Returns what was ended, what is left, and whether memory came back.

    `timeout_s_supervisor`: how long the supervisor may take before everything is SIGKILLed from here.
    """
    run_dir = runs_root(state_path) / run_id
    state = read_state(run_dir)
    if state is None:
        return {"found": False, "ended": [], "left": []}
    before = living_processes(run_id, state)
    shared_memory = shared_memory_files([process.pid for process in before])
    if before:
        _ask_supervisor(state, timeout_s_supervisor)
    left = end_processes(lambda: living_processes(run_id, state), timeout_s=3.0)
    removed = remove_shared_memory(shared_memory)
    state = _record_end(run_dir, bool(before))
    return {
        "found": True,
        "ended": [{"pid": p.pid, "title": p.title[:200]} for p in before],
        "left": [{"pid": p.pid, "title": p.title[:200], "state": p.state} for p in left],
        "shared_memory_removed": sorted({*removed, *state.get("shared_memory_removed", [])}),
        "end": state.get("end"),
        **_wait_for_memory(state, memory_timeout_s if before else 0.0),
    }


def _ask_supervisor(state: dict, timeout_s: float) -> None:
    supervisor = same_process(state.get("supervisor_pid", -1), state.get("supervisor_start_ticks", -1))
    if supervisor is None or supervisor.state in "Tt":
        return  # gone or frozen: it cannot act, so the caller ends everything
    with suppress(ProcessLookupError):
        os.kill(supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and same_process(supervisor.pid, supervisor.start_ticks):
        time.sleep(0.03)


def _record_end(run_dir: Path, was_alive: bool) -> dict:
    """The supervisor records its own end; when it could not, say that we ended the run."""
    state = read_state(run_dir) or {}
    if state.get("phase") != "ended":
        what = "ended by sparkctl down; its supervisor was gone" if was_alive else "found dead by sparkctl down"
        state.update(phase="ended", end=state.get("end") or {"kind": "stopped", "what": what, "at_unix": time.time()})
        write_state(run_dir, state)
    forget_secrets(run_dir)
    return state


def _wait_for_memory(state: dict, timeout_s: float) -> dict:
    """On unified memory the GPU's pages come back after the processes are gone; the next start needs them."""
    wanted = int(state.get("memory_available_before_bytes", 0) * MEMORY_BACK_FRACTION)
    deadline = time.monotonic() + timeout_s
    while (available := memory_available_bytes()) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return {"memory_available_bytes": available, "memory_wanted_bytes": wanted, "memory_back": available >= wanted}

"""Stream a run to the launcher: its log as it grows, its state as it changes, and a beat.

Lines: {"log": text, "offset": bytes so far} | {"state": {...}, "processes": n} | {"beat": seconds}.
Ends when the launcher closes stdin, or a while after the run ended. Holds nothing of the run: a launcher that
goes away leaves the run as it is.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Any, BinaryIO

from launcher.node.answer import Refused, answer
from launcher.node.list_runs import living_processes
from launcher.node.processes import same_process
from launcher.node.run_dir import read_state, runs_root

TICK_S = 0.1
BEAT_S = 0.5
MAX_READ_BYTES = 256 * 1024


def watch_run(*, state_path: str, run_id: str, log_offset: int = 0) -> None:
    """Blocks until stdin closes, or until the run ended and all of its log was sent.
    `log_offset` -1: from its end.
    """
    run_dir = runs_root(state_path) / run_id
    if read_state(run_dir) is None:
        raise Refused(f"this node has no run {run_id}", "sparkctl status")
    started = time.monotonic()
    last_beat, last_state = 0.0, None
    with (run_dir / "engine.log").open("rb") as log:
        log.seek(0, os.SEEK_END) if log_offset < 0 else log.seek(log_offset)
        while True:
            state = read_state(run_dir) or {}  # before the log: what was written until an end is sent
            more = _send_log(log)
            if state != last_state:
                last_state = state
                answer({"state": state})
            if not more and state.get("phase") == "ended":
                return
            now = time.monotonic()
            if now - last_beat >= BEAT_S:
                last_beat = now
                answer({"beat": now - started, **_vital_signs(run_id, state)})
            if not more and _stdin_closed(TICK_S):
                return


def _send_log(log: BinaryIO) -> bool:
    """Send at most one portion; True when there may be more."""
    data = log.read(MAX_READ_BYTES)
    if data:
        answer({"log": data.decode("latin-1"), "offset": log.tell()})
    return len(data) == MAX_READ_BYTES


def _vital_signs(run_id: str, state: dict[str, Any]) -> dict[str, Any]:
    """What the supervisor cannot say about itself: that it is gone or frozen."""
    supervisor = same_process(state.get("supervisor_pid", -1), state.get("supervisor_start_ticks", -1))
    if supervisor is None:
        return {"supervisor": "gone", "processes": len(living_processes(run_id, state))}
    return {"supervisor": "frozen" if supervisor.state in "Tt" else "alive"}


def _stdin_closed(timeout_s: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return bool(ready) and os.read(sys.stdin.fileno(), 4096) == b""

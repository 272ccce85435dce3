"""Send the tail of a run's log, and what follows while the launcher listens."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from launcher.node.answer import Refused, answer
from launcher.node.processes import same_process
from launcher.node.run_dir import read_state, runs_root

BLOCK_BYTES = 64 * 1024
FOLLOW_S = 0.2


def read_log(*, state_path: str, run_id: str, lines: int, follow: bool, name: str = "engine.log") -> None:
    """Lines: {"log": text (latin-1 bytes)} ...; the last one is {"eof": true} unless followed."""
    if name not in ("engine.log", "supervisor.log"):
        raise Refused(f"the log must be engine.log or supervisor.log, got {name}")
    run_dir = runs_root(state_path) / run_id
    path = run_dir / name
    if not path.is_file():
        raise Refused(f"this node has no {name} of run {run_id}", "sparkctl status --all")
    with path.open("rb") as log:
        log.seek(_tail_offset(path, lines))
        while True:
            over = not follow or _is_over(
                run_dir
            )  # before the last read: what was written until then is sent
            data = log.read(BLOCK_BYTES)
            if data:
                answer({"log": data.decode("latin-1")})
                continue
            if over:
                answer({"eof": True})
                return
            if select.select([sys.stdin], [], [], FOLLOW_S)[0] and not os.read(sys.stdin.fileno(), 4096):
                return


def _is_over(run_dir: Path) -> bool:
    """The run ended, or nobody is left to write its log."""
    state = read_state(run_dir) or {}
    if state.get("phase") == "ended":
        return True
    return same_process(state.get("supervisor_pid", -1), state.get("supervisor_start_ticks", -1)) is None


def _tail_offset(path: Path, lines: int) -> int:
    """Byte offset at which the last `lines` lines begin; 0 for all. Reads backwards in blocks."""
    size = path.stat().st_size
    if lines <= 0:
        return 0
    position, found, tail = size, 0, b""
    with path.open("rb") as log:
        while position > 0 and found <= lines:
            step = min(BLOCK_BYTES, position)
            position -= step
            log.seek(position)
            tail = log.read(step) + tail
            found = tail.count(b"\n")
    parts = tail.split(b"\n")
    keep = parts[-(lines + 1) :]
    return size - len(b"\n".join(keep))

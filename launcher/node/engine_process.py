"""The engine's main process: started so that it cannot outlive its supervisor, its output caught."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from pathlib import Path

from launcher.node.engine_output import EngineOutput

PR_SET_PDEATHSIG = 1


def start_engine(
    libc: ctypes.CDLL, argv: list[str], environment: dict[str, str], run_dir: Path, secrets: list[str]
) -> tuple[subprocess.Popen[bytes], EngineOutput]:
    """Runs in `run_dir`; its output goes to engine.log there, without the secrets. Raises OSError."""
    read_end, write_end = os.pipe()
    try:
        engine = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end, env=environment,
            cwd=str(run_dir),
            # The engine must not outlive its supervisor, even one that was SIGKILLed.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )  # fmt: skip
    finally:
        os.close(write_end)
    return engine, EngineOutput(read_end, run_dir / "engine.log", secrets)

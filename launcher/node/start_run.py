"""Start a run on this node: claim the node, write the run's directory, start its supervisor.

The claim is made under a lock, so that of two starts at the same moment one is refused.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused
from launcher.node.list_runs import live_runs
from launcher.node.node_lock import node_lock
from launcher.node.processes import boot_id, memory_available_bytes
from launcher.node.run_dir import read_state, runs_root, write_file, write_state

KEEP_RUNS = 20  # run directories kept for their logs; the oldest ended ones go first
START_TIMEOUT_S = 10.0


def start_run(
    *, state_path: str, run_id: str, node: dict[str, Any], secrets: dict[str, Any], code: str
) -> dict[str, Any]:
    """Write what to run and start the supervisor; returns its pid once it holds the engine.

    `node`: name, argv, environment, is_head, ranks, heartbeat, limits (see `launcher/execute_plan.py`).
    `secrets`: engine options that must not stand in argv. `code`: base64 of the zip this runs from.
    """
    with _locked(state_path):
        others = live_runs(state_path)
        if others:
            other = others[0]
            raise Refused(
                "an earlier run is still alive: {}, {} since {}".format(
                    other["run_id"], other["status"], other["started"]
                ),
                "sparkctl down --run {}, or sparkctl up --replace".format(other["run_id"]),
                {"run_id": other["run_id"]},
            )
        run_dir = _write_run_dir(state_path, run_id, node, secrets, base64.b64decode(code))
        _remove_old_runs(runs_root(state_path))
        log = os.open(
            run_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(run_dir / "node.pyz"), "supervise", str(run_dir)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=str(run_dir),
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8",
                 "SPARKCTL_RUN_ID": run_id, "SPARKCTL_NODE": node["name"]},
        )  # fmt: skip
        os.close(log)
        return _await_supervisor(run_dir)


@contextmanager
def _locked(state_path: str) -> Iterator[None]:
    """The first thing that a start writes:
    where it cannot, the node's state directory is no place for runs.
    """
    try:
        lock = node_lock(state_path)
        lock.__enter__()
    except OSError as error:
        raise _not_writable(state_path, error) from error
    with ExitStack() as stack:
        stack.push(lock)
        yield


def _not_writable(path: str | Path, error: OSError) -> Refused:
    return Refused(
        f"the run's directory {path} cannot be written: {error.strerror}",
        "free some space, or give the node another paths.state in the topology",
    )


def _write_run_dir(
    state_path: str, run_id: str, node: dict[str, Any], secrets: dict[str, Any], code: bytes
) -> Path:
    run_dir = runs_root(state_path) / run_id
    try:
        run_dir.mkdir(parents=True, mode=0o700)
        for name in ("tmp", "reports"):
            (run_dir / name).mkdir(mode=0o700)
        if secrets:
            lines = [f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in sorted(secrets.items())]
            write_file(run_dir / "engine.yaml", "".join(lines).encode())
        write_file(run_dir / "node.json", json.dumps({"node": node, "secrets": secrets}).encode())
        write_file(run_dir / "node.pyz", code)
        write_file(run_dir / "engine.log", b"")
        write_state(run_dir, {
            "run_id": run_id, "node": node["name"], "phase": "starting", "boot_id": boot_id(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "started_unix": time.time(),
            "memory_available_before_bytes": memory_available_bytes(),
            "is_head": node["is_head"], "api": node["api"], "container": node["container"],
        })  # fmt: skip
    except FileExistsError as error:
        raise Refused(
            f"run {run_id} exists already on this node, or was ended meanwhile", "sparkctl up"
        ) from error
    except OSError as error:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise _not_writable(run_dir, error) from error
    return run_dir


def _await_supervisor(run_dir: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        state = read_state(run_dir) or {}
        if state.get("phase") != "starting":
            return {"run_dir": str(run_dir), "state": state}
        time.sleep(0.02)
    said = (run_dir / "supervisor.log").read_text(errors="replace").strip().splitlines()
    raise Refused(
        f"the supervisor did not start in {START_TIMEOUT_S:.0f} s: {said[-1] if said else 'it said nothing'}",
        f"look into {run_dir}/supervisor.log on the node",
    )


def _remove_old_runs(root: Path) -> None:
    """Only called under the lock while no run lives, so every directory but the newest is of an ended run."""
    directories = sorted(
        (path for path in root.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
    )
    for path in directories[:-KEEP_RUNS]:
        shutil.rmtree(path, ignore_errors=True)

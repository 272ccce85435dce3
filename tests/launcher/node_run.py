"""A run on this machine's own node, started as the launcher starts it, with a stand-in for the engine."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.call_node import Answer, NodeStream, ask_node, encoded_node_code
from launcher.local_remote import LocalRemote

ENGINE = Path(__file__).with_name("stand_in_engine.py")
REMOTE = LocalRemote("node-0")


class NodeRun:
    """The id is its own: a run is found by it among all processes of the machine."""

    def __init__(self, state_path: Path, run_id: str = "") -> None:
        self.state_path = state_path
        self.run_id = run_id or f"run-{uuid.uuid4().hex[:12]}"
        self.run_dir = state_path / "runs" / self.run_id

    def start(self, *words: str, secrets: dict[str, str] | None = None, **node: Any) -> NodeRun:
        description = {
            "name": "node-0",
            "is_head": True,
            "argv": [sys.executable, str(ENGINE), *words],
            "environment": {
                "SPARKCTL_RUN_ID": self.run_id,
                "SPARKCTL_NODE": "node-0",
                "PATH": os.environ["PATH"],
            },
            "container": None,
            "token": "a-token-of-this-run",
            "api": {"host": "127.0.0.1", "port": 1},
            "heartbeat": None,
            "limits": {"freeze_timeout_s": 1.5, "drain_s": 0.5},
            **node,
        }
        self.ask(
            "start", run_id=self.run_id, node=description, secrets=secrets or {}, code=encoded_node_code()
        )
        return self

    def ask(self, verb: str, **values: object) -> Answer:
        request: dict[str, Any] = {"state_path": str(self.state_path), **values}
        return ask_node(REMOTE, verb, **request)

    def stop(self, **changes: object) -> Answer:
        values = {"timeout_s_supervisor": 4.0, "memory_timeout_s": 0.0, "refuse_start": False, **changes}
        return self.ask("stop", run_id=self.run_id, node="node-0", **values)

    def describe(self) -> dict[str, Any]:
        (run,) = self.ask("runs", run_id=self.run_id)["runs"]
        return dict(run)

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.describe()["state"])

    def wait_for(self, what: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while not what(run := self.describe()):
            assert time.monotonic() < deadline, run
            time.sleep(0.05)
        return run

    def wait_for_rank(self) -> int:
        """Pid of the scheduler, once the supervisor has seen it."""
        run = self.wait_for(lambda run: bool(run["state"].get("ranks")))
        return int(next(iter(run["state"]["ranks"])))

    def wait_for_end(self) -> dict[str, Any]:
        run = self.wait_for(lambda run: run["state"].get("phase") == "ended" and not run["processes"])
        assert run["status"] == "ended"
        return dict(run["state"]["end"])

    def stream(self, **values: object) -> NodeStream:
        return NodeStream(REMOTE, "watch", state_path=str(self.state_path), run_id=self.run_id, **values)

    def log(self) -> bytes:
        return (self.run_dir / "engine.log").read_bytes()


def pids_of(marker: str) -> set[int]:
    """Living processes with these words in their command line, environment or working directory."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            words = (
                (entry / "cmdline").read_bytes()
                + (entry / "environ").read_bytes()
                + str((entry / "cwd").readlink()).encode()
            )
            state = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0]
            if marker.encode() in words and state not in "ZX":
                found.add(int(entry.name))
    return found


def kill_all(marker: str) -> None:
    for pid in pids_of(marker):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

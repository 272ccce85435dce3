"""The supervisor of one node: holds the engine, watches its ranks, and ends everything together.

It is the session leader and subreaper of all processes of the run on this node. It ends the run when the
engine's main process or one of its schedulers ends, when a rank stays stopped (SIGSTOP), when a peer ended or
fell silent, or when asked to (SIGTERM). Each end is written to state.json with its cause, then told to the peers.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from launcher.node.end_processes import end_processes, remove_shared_memory
from launcher.node.engine_output import EngineOutput
from launcher.node.exit_watch import ExitWatch, describe_wait_status
from launcher.node.peers import Peers
from launcher.node.processes import boot_id, read_process, run_processes, shared_memory_files
from launcher.node.run_dir import forget_secrets, read_json, read_state, write_state

TICK_S = 0.1
SCAN_S = 0.5  # how often /proc is read as a whole; exits are seen each tick through pidfds
SHARED_MEMORY_SCAN_S = 2.0
RANK_TITLE = "sglang::scheduler"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def supervise(run_dir: str) -> int:
    """Entry of the supervisor process. Returns its exit status."""
    directory = Path(run_dir)
    state = read_state(directory) or {}
    description = read_json(directory / "node.json") or {}
    supervisor = Supervisor(directory, state, description["node"], description["secrets"])
    try:
        supervisor.start()
        supervisor.watch()
    except Exception as error:
        supervisor.end({"kind": "supervisor", "what": "the supervisor failed: %s: %s" % (type(error).__name__, error)})
        raise
    return 0


class Supervisor:
    def __init__(self, run_dir: Path, state: dict, node: dict, secrets: dict) -> None:
        self.run_dir = run_dir
        self.state = state
        self.node = node
        self.secrets = secrets
        self.ranks: dict[int, ExitWatch] = {}
        self.shared_memory: set[str] = set()
        self.stopped_since: dict[int, float] = {}
        self.asked_to_stop = False
        self.peers: Peers | None = None
        self.engine: subprocess.Popen | None = None
        self.output: EngineOutput | None = None

    # Start ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        me = read_process(os.getpid())
        assert me is not None
        self.state.update(supervisor_pid=me.pid, supervisor_start_ticks=me.start_ticks, session=os.getsid(0),
                          boot_id=boot_id(), ranks={}, end=None)  # fmt: skip
        (self.run_dir / "supervisor.pid").write_text("%d\n" % me.pid)
        try:
            self.peers = self._start_peers()
            self.engine = self._start_engine(libc)
        except OSError as error:
            self.end({"kind": "start", "what": "the engine could not be started: %s" % error})
            sys.exit(1)
        self.state.update(phase="running", engine_pid=self.engine.pid)
        write_state(self.run_dir, self.state)

    def _start_peers(self) -> Peers | None:
        heartbeat = self.node["heartbeat"]
        if heartbeat is None:
            return None
        return Peers(node=self.node["name"], token=self.secrets_token(), is_head=self.node["is_head"],
                     address=heartbeat["address"], port=heartbeat["port"], num_workers=heartbeat["num_workers"],
                     timeout_s=heartbeat["timeout_s"])  # fmt: skip

    def secrets_token(self) -> str:
        return str(self.node["token"])

    def _start_engine(self, libc: ctypes.CDLL) -> subprocess.Popen:
        argv = list(self.node["argv"])
        if self.secrets:
            argv += ["--config", str(self.run_dir / "engine.yaml")]
        environment = dict(self.node["environment"], TMPDIR=str(self.run_dir / "tmp"))
        read_end, write_end = os.pipe()
        try:
            engine = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end, env=environment,
                cwd=str(self.run_dir),
                # The engine must not outlive its supervisor, even one that was SIGKILLed.
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )  # fmt: skip
        finally:
            os.close(write_end)
        secrets = [str(value) for value in self.secrets.values()] + [self.secrets_token()]
        self.output = EngineOutput(read_end, self.run_dir / "engine.log", secrets)
        return engine

    def _on_stop_signal(self, number: int, frame: object) -> None:
        self.asked_to_stop = True

    # Watch ---------------------------------------------------------------------------------------------

    def watch(self) -> None:
        next_scan = next_memory_scan = 0.0
        while True:
            now = time.monotonic()
            cause = self._stop_request() or self._rank_end() or self._engine_end() or self._peer_end()
            if cause is None and now >= next_scan:
                next_scan = now + SCAN_S
                cause = self._scan(now)
            if cause is not None:
                self.end(cause)
                return
            if now >= next_memory_scan:
                next_memory_scan = now + SHARED_MEMORY_SCAN_S
                self.shared_memory |= shared_memory_files([p.pid for p in self._processes()])
            time.sleep(TICK_S)

    def _processes(self) -> list:
        me = os.getpid()
        found = run_processes(self.state["run_id"], self.node["name"], me, self.state["session"])
        return [process for process in found if process.pid != me]

    def _stop_request(self) -> dict | None:
        return {"kind": "stopped", "what": "stopped on request"} if self.asked_to_stop else None

    def _engine_end(self) -> dict | None:
        assert self.engine is not None
        try:
            pid, status = os.waitpid(self.engine.pid, os.WNOHANG)
        except ChildProcessError:
            return {"kind": "engine", "what": "the engine's main process is gone"}
        if pid == 0:
            self._reap_orphan()
            return None
        self.engine.returncode = os.waitstatus_to_exitcode(status)
        return {"kind": "engine", "what": "the engine's main process ended", "pid": pid, **describe_wait_status(status)}

    def _reap_orphan(self) -> None:
        """As subreaper we inherit orphans; each tick reaps one that ended."""
        assert self.engine is not None
        with suppress(ChildProcessError):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None and found.si_pid != self.engine.pid:
                os.waitpid(found.si_pid, os.WNOHANG)

    def _rank_end(self) -> dict | None:
        for pid, watch in self.ranks.items():
            if watch.poll():
                title = self.state["ranks"][str(pid)]
                return {"kind": "rank", "what": "%s ended" % title, "pid": pid,
                        **describe_wait_status(watch.wait_status())}  # fmt: skip
        return None

    def _peer_end(self) -> dict | None:
        if self.peers is None:
            return None
        while True:
            try:
                kind, peer, detail = self.peers.events.get_nowait()
            except queue.Empty:
                return None
            if kind == "ended":
                return {"kind": "peer", "peer": peer, "what": "node %s ended: %s" % (peer, detail.get("what", "?"))}
            if kind == "silent":
                return {"kind": "peer-silent", "peer": peer, "what": detail["what"]}
            self.state.setdefault("peers_joined", []).append(peer)
            write_state(self.run_dir, self.state)

    def _scan(self, now: float) -> dict | None:
        """New ranks, and ranks that somebody stopped."""
        processes = self._processes()
        for process in processes:
            if process.title.startswith(RANK_TITLE) and process.pid not in self.ranks:
                try:
                    self.ranks[process.pid] = ExitWatch(process.pid)
                except ProcessLookupError:
                    continue
                self.state["ranks"][str(process.pid)] = process.title
                write_state(self.run_dir, self.state)
        stopped = {process.pid: process for process in processes if process.state == "T"}
        self.stopped_since = {pid: self.stopped_since.get(pid, now) for pid in stopped}
        limit_s = self.node["limits"]["freeze_timeout_s"]
        for pid, since in self.stopped_since.items():
            if now - since >= limit_s:
                return {"kind": "frozen", "pid": pid,
                        "what": "%s stayed stopped (SIGSTOP) for %.0f s" % (stopped[pid].title[:80], limit_s)}  # fmt: skip
        frozen = sorted(stopped)
        if frozen != self.state.get("frozen", []):
            self.state["frozen"] = frozen
            write_state(self.run_dir, self.state)
        return None

    # End -----------------------------------------------------------------------------------------------

    def end(self, cause: dict) -> None:
        """Write the cause, tell the peers, end every process of the run, and leave nothing behind."""
        cause = {**cause, "at_unix": time.time()}
        self.state.update(phase="ending", end=cause)
        write_state(self.run_dir, self.state)
        if self.peers is not None:
            self.peers.tell_ended({key: cause[key] for key in ("kind", "what") if key in cause})
        asked = cause["kind"] == "stopped"
        if self.engine is not None:
            self.shared_memory |= shared_memory_files([p.pid for p in self._processes()])
            if asked and self.engine.returncode is None:
                self._ask_engine_to_end()
            end_processes(self._processes, timeout_s=3.0)
            if self.engine.returncode is None:
                try:
                    self.engine.wait(timeout=3.0)
                except subprocess.TimeoutExpired:
                    cause["left_running"] = self.engine.pid
        if self.output is not None:
            self.output.finish(1.0)
            self.state["dropped_log_bytes"] = self.output.dropped_bytes
        self.state["shared_memory_removed"] = remove_shared_memory(self.shared_memory)
        self.state.update(phase="ended", end=cause)
        forget_secrets(self.run_dir)
        write_state(self.run_dir, self.state)

    def _ask_engine_to_end(self) -> None:
        """SIGTERM drains rank 0; workers end with it. A worker ignores SIGTERM, so it only waits for rank 0."""
        assert self.engine is not None
        self.engine.terminate()
        try:
            self.engine.wait(timeout=self.node["limits"]["drain_s"])
        except subprocess.TimeoutExpired:
            return

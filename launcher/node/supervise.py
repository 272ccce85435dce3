"""The supervisor of one node: holds the engine, watches its ranks, and ends everything together.

It is the session leader and subreaper of all processes of the run on this node. It ends the run when the
engine's main process or one of its children ends, when a rank stays stopped (SIGSTOP), when a peer ended or
fell silent, or when asked to (SIGTERM). Each end is written to state.json with its cause, then told to the
peers.
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
from typing import Any

from launcher.node.end_processes import (
    end_container,
    end_processes,
    remove_shared_memory,
    shared_memory_named_after,
    shared_memory_names,
)
from launcher.node.engine_output import EngineOutput
from launcher.node.engine_process import start_engine
from launcher.node.exit_watch import ExitWatch, describe_wait_status
from launcher.node.peers import Peers
from launcher.node.processes import (
    Process,
    boot_id,
    descendants,
    read_process,
    run_processes,
    shared_memory_files,
)
from launcher.node.run_dir import (
    make_temp_link,
    read_json,
    read_state,
    remove_what_only_a_living_run_needs,
    write_state,
)

TICK_S = 0.1
PEER_WORD_S = 1.5  # a peer tells its end once it knows how its main process ended: PARENT_SIGN_S and more
SCAN_S = 0.5  # how often /proc is read as a whole; exits are seen each tick through pidfds
RANK_TITLE = "sglang::scheduler"
# The engine's other children, and those that have no title yet: they import for seconds before they take one.
CHILD_TITLES = ("sglang::", "--multiprocessing-fork")
# A child that dies with the engine's main process is often seen before it: that one's many threads end first.
PARENT_SIGN_S = 0.1
PARENT_END_S = 2.0
PR_SET_CHILD_SUBREAPER = 36


def supervise(run_dir: str) -> int:
    """Entry of the supervisor process. Returns its exit status."""
    directory = Path(run_dir)
    state = read_state(directory) or {}
    description = read_json(directory / "node.json")
    if description is None or state.get("phase") != "starting":
        print("the run was ended before its supervisor started", file=sys.stderr)
        return 1
    supervisor = Supervisor(directory, state, description["node"], description["secrets"])
    try:
        supervisor.start()
        supervisor.watch()
    except Exception as error:
        supervisor.end(
            {"kind": "supervisor", "what": f"the supervisor failed: {type(error).__name__}: {error}"}
        )
        raise
    return 0


class Supervisor:
    def __init__(
        self, run_dir: Path, state: dict[str, Any], node: dict[str, Any], secrets: dict[str, Any]
    ) -> None:
        self.run_dir = run_dir
        self.state = state
        self.node = node
        self.secrets = secrets
        self.watched: dict[int, tuple[str, ExitWatch]] = {}  # pid -> title, watch
        self.shared_memory: set[str] = set()
        self.shared_memory_seen: set[str] = set()
        self.pids_seen: set[int] = set()
        self.stopped_since: dict[int, float] = {}
        self.asked_to_stop = False
        self.unsaved = False
        self.peers: Peers | None = None
        self.engine: subprocess.Popen[bytes] | None = None
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
        self.state.update(
            supervisor_pid=me.pid,
            supervisor_start_ticks=me.start_ticks,
            boot_id=boot_id(),
            ranks={},
            end=None,
        )
        try:
            self.peers = self._start_peers()
            secrets = [*map(str, self.secrets.values()), self._token()]
            environment = dict(self.node["environment"], TMPDIR=make_temp_link(self.run_dir))
            self.engine, self.output = start_engine(libc, self.argv, environment, self.run_dir, secrets)
        except OSError as error:
            self.end({"kind": "start", "what": f"the engine could not be started: {error}"})
            sys.exit(1)
        self.state.update(phase="running", engine_pid=self.engine.pid)
        self._save()

    def _start_peers(self) -> Peers | None:
        heartbeat = self.node["heartbeat"]
        if heartbeat is None:
            return None
        name, is_head = self.node["name"], self.node["is_head"]
        return Peers(node=name, token=self._token(), is_head=is_head, **heartbeat)

    @property
    def _runs(self) -> str:
        return str(self.node.get("runs", "engine"))

    def _token(self) -> str:
        return str(self.node["token"])

    def _on_stop_signal(self, number: int, frame: object) -> None:
        self.asked_to_stop = True

    @property
    def argv(self) -> list[str]:
        secret_options = ["--config", str(self.run_dir / "engine.yaml")] if self.secrets else []
        return [*self.node["argv"], *secret_options]

    def _save(self) -> None:
        """A full disk must not end the run: what could not be saved is saved when there is room again."""
        try:
            write_state(self.run_dir, self.state)
            self.unsaved = False
        except OSError:
            self.unsaved = True

    # Watch ---------------------------------------------------------------------------------------------

    def watch(self) -> None:
        next_scan = 0.0
        while True:
            now = time.monotonic()
            cause = self._stop_request() or self._own_end() or self._peer_end()
            if cause is None and now >= next_scan:
                next_scan = now + SCAN_S
                cause = self._scan(now)
            if cause is not None:
                self.end(cause)
                return
            self._note_shared_memory()
            time.sleep(TICK_S)

    def _processes(self) -> list[Process]:
        """All that the engine started. As subreaper we are above it;
        a container's processes are not below us.
        """
        if not self.node["container"]:
            return descendants(os.getpid())
        return run_processes(
            self.state["run_id"], self.node["name"], os.getpid(), self.state["supervisor_start_ticks"]
        )

    def _stop_request(self) -> dict[str, Any] | None:
        return {"kind": "stopped", "what": "stopped on request"} if self.asked_to_stop else None

    def _own_end(self) -> dict[str, Any] | None:
        """A rank that ends by itself with status 0 mostly followed a peer: wait a moment for its word.

        SGLang's scheduler logs its exception, signals its parent and returns, so 0 says nothing of the cause.
        """
        cause = self._engine_or_child_end()
        if cause is None or cause.get("exit_code") != 0 or self.peers is None:
            return cause
        deadline = time.monotonic() + PEER_WORD_S
        while time.monotonic() < deadline:
            if (word := self._stop_request() or self._peer_end()) is not None:
                return word
            time.sleep(0.01)
        return cause

    def _engine_or_child_end(self) -> dict[str, Any] | None:
        """Which was first? A killed main process takes its children along,
        a dead child makes it end by itself.
        """
        engine_end = self._engine_end()
        child_end = self._child_end()
        if child_end is not None and engine_end is None:
            engine_end = self._wait_for_engine_if_it_is_ending()
        if engine_end is None or (child_end is not None and "signal" not in engine_end):
            return child_end
        return engine_end

    def _wait_for_engine_if_it_is_ending(self) -> dict[str, Any] | None:
        """Its first thread is a zombie while the others end; waitpid tells how after the last one."""
        assert self.engine is not None
        started = time.monotonic()
        while (waited_s := time.monotonic() - started) < PARENT_END_S:
            if (end := self._engine_end()) is not None:
                return end
            main = read_process(self.engine.pid)
            if waited_s > PARENT_SIGN_S and main is not None and main.state not in "ZX":
                return None
            time.sleep(0.01)
        return None

    def _engine_end(self) -> dict[str, Any] | None:
        assert self.engine is not None
        try:
            pid, status = os.waitpid(self.engine.pid, os.WNOHANG)
        except ChildProcessError:
            return {"kind": "engine", "what": f"the {self._runs}'s main process is gone"}
        if pid == 0:
            self._reap_orphan()
            return None
        self.engine.returncode = os.waitstatus_to_exitcode(status)
        return {
            "kind": "engine",
            "what": f"the {self._runs}'s main process ended",
            "pid": pid,
            **describe_wait_status(status),
        }

    def _reap_orphan(self) -> None:
        """As subreaper we inherit orphans; each tick reaps one that ended."""
        assert self.engine is not None
        with suppress(ChildProcessError):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None and found.si_pid != self.engine.pid:
                os.waitpid(found.si_pid, os.WNOHANG)

    def _child_end(self) -> dict[str, Any] | None:
        for pid, (title, watch) in list(self.watched.items()):
            if not watch.poll():
                continue
            how = describe_wait_status(watch.wait_status())
            if title.startswith("sglang::"):
                kind = "rank" if title.startswith(RANK_TITLE) else "child"
                return {"kind": kind, "what": f"{title} ended", "pid": pid, **how}
            if "signal" in how:
                return {"kind": "child", "what": "a starting child of the engine ended", "pid": pid, **how}
            watch.close()  # one that had a small job and ended by itself
            del self.watched[pid]
        return None

    def _peer_end(self) -> dict[str, Any] | None:
        if self.peers is None:
            return None
        while True:
            try:
                kind, peer, detail = self.peers.events.get_nowait()
            except queue.Empty:
                return None
            if kind == "ended" and detail.get("kind") == "stopped":
                return {"kind": "stopped", "peer": peer, "what": f"stopped on request, as node {peer}"}
            if kind == "ended":
                return {
                    "kind": "peer",
                    "peer": peer,
                    "what": "node {} ended: {}".format(peer, detail.get("what", "?")),
                }
            if kind == "silent":
                return {"kind": "peer-silent", "peer": peer, "what": detail["what"]}
            self.state.setdefault("peers_joined", []).append(peer)
            self._save()

    def _scan(self, now: float) -> dict[str, Any] | None:
        """New children of the engine, those that somebody stopped, and peers that are quiet."""
        changed = self.unsaved
        processes = self._processes()
        self.pids_seen |= {process.pid for process in processes}
        schedulers = {process.pid for process in processes if process.title.startswith(RANK_TITLE)}
        for process in processes:
            changed |= self._watch_child(process, schedulers)
        stopped = {process.pid: process for process in processes if process.state == "T"}
        self.stopped_since = {pid: self.stopped_since.get(pid, now) for pid in stopped}
        limit_s = self.node["limits"]["freeze_timeout_s"]
        for pid, since in self.stopped_since.items():
            if now - since >= limit_s:
                return {
                    "kind": "frozen",
                    "pid": pid,
                    "what": f"{stopped[pid].title[:80]} stayed stopped (SIGSTOP) for {limit_s:.0f} s",
                }
        quiet = self.peers.quiet() if self.peers else []
        changed |= sorted(stopped) != self.state.get("frozen", []) or quiet != self.state.get(
            "quiet_peers", []
        )
        self.state.update(frozen=sorted(stopped), quiet_peers=quiet)
        if changed:
            self._save()
        return None

    def _watch_child(self, process: Process, schedulers: set[int]) -> bool:
        """True when a rank was seen for the first time."""
        assert self.engine is not None
        known = self.watched.pop(process.pid, None)
        if self._is_part_of_engine(process, schedulers):
            with suppress(ProcessLookupError):
                self.watched[process.pid] = (process.title, known[1] if known else ExitWatch(process.pid))
        elif known:
            known[1].close()
        if process.pid not in self.watched or not process.title.startswith(RANK_TITLE):
            return False
        is_new = str(process.pid) not in self.state["ranks"]
        self.state["ranks"][str(process.pid)] = process.title
        return is_new

    def _is_part_of_engine(self, process: Process, schedulers: set[int]) -> bool:
        """A scheduler anywhere below us, or a child that the engine's main process forked or spawned to
        become one. What a scheduler forks has its title until it runs another program, and may end.
        """
        assert self.engine is not None
        if process.pid in schedulers:
            return process.parent_pid not in schedulers
        if process.parent_pid != self.engine.pid:
            return False
        return process.title == " ".join(self.argv) or any(part in process.title for part in CHILD_TITLES)

    def _note_shared_memory(self) -> None:
        """Which files in /dev/shm are ours is only visible while they are in use: looked at when a new one
        appears.

        The names are kept in state.json too, for the end of a run whose supervisor was killed.
        """
        names = shared_memory_names()
        new, self.shared_memory_seen = names - self.shared_memory_seen, names
        if not new:
            return
        self.shared_memory |= shared_memory_files([process.pid for process in self._processes()])
        known = sorted(self.shared_memory & names)
        if known != self.state.get("shared_memory", []):
            self.state["shared_memory"] = known
            self._save()

    # End -----------------------------------------------------------------------------------------------

    def end(self, cause: dict[str, Any]) -> None:
        """Write the cause, tell the peers, end every process of the run, and leave nothing behind."""
        cause = {**cause, "at_unix": time.time()}
        self.state.update(phase="ending", end=cause)
        self._save()
        if self.peers is not None:
            self.peers.tell_ended({key: cause[key] for key in ("kind", "what") if key in cause})
        if self.engine is not None:
            self.shared_memory |= shared_memory_files([p.pid for p in self._processes()])
            self._end_engine(cause)
            self.shared_memory |= shared_memory_named_after(self.pids_seen)
        if self.output is not None:
            self.output.finish(1.0)
            self.state["dropped_log_bytes"] = self.output.dropped_bytes
        self.state["shared_memory_removed"] = remove_shared_memory(self.shared_memory)
        if self.peers is not None:
            self.peers.close()
        self.state.update(phase="ended", end=cause)
        remove_what_only_a_living_run_needs(self.run_dir)  # on a full disk it makes room for the state
        self._save()

    def _end_engine(self, cause: dict[str, Any]) -> None:
        assert self.engine is not None
        if cause["kind"] == "stopped" and self.engine.returncode is None:
            self._ask_engine_to_end()
        if self.node["container"]:
            end_container(self.node["container"])
        left = end_processes(self._processes, timeout_s=3.0)
        if left:
            cause["left_running"] = [process.pid for process in left]
        if self.engine.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                self.engine.wait(timeout=1.0)

    def _ask_engine_to_end(self) -> None:
        """SIGTERM drains rank 0; workers end with it.
        A worker ignores SIGTERM, so it only waits for rank 0.
        """
        assert self.engine is not None
        self.engine.terminate()
        try:
            self.engine.wait(timeout=self.node["limits"]["drain_s"])
        except subprocess.TimeoutExpired:
            return

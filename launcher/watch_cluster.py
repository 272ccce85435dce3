"""Watch all nodes of a run at once:
one thread a node reads its stream, one queue brings the answers together.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from launcher.call_node import Answer, NodeStream
from launcher.cluster_view import ClusterView
from launcher.errors import PreflightRefused, SparkctlError
from launcher.plan import LaunchPlan
from launcher.remote import Remote

READ_S = 0.5
RETRY_S = 1.0
WATCH = "watch"
TOKEN = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnswer:
    """What a stream gave: an answer, or why it broke. `is_final`: it will not be tried again."""

    node: str
    kind: str
    answer: Answer | None = None
    error: str = ""
    is_final: bool = False


class ClusterWatch:
    """Feeds a ClusterView. `clock` gives seconds (monotonic)."""

    def __init__(self, plan: LaunchPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.view = ClusterView(plan, clock())
        self.token: Answer | None = None
        self.token_error = ""
        self._answers: queue.SimpleQueue[StreamAnswer] = queue.SimpleQueue()
        self._closing = threading.Event()

    def open(self, remotes: Mapping[str, Remote], *, from_log_end: bool = False) -> None:
        for node in self.view.plan.nodes:
            self._spawn(self._watch_node, remotes[node.name], node.state_path, -1 if from_log_end else 0)

    def await_token(self, remote: Remote, *, api_key: str | None, timeout_s: float) -> None:
        """Ask the head for a first token as soon as it can give one."""
        api = self.view.plan.api
        request = {
            "host": api.probe_host,
            "port": api.port,
            "api_key": api_key,
            "timeout_s": timeout_s,
            "request_timeout_s": timeout_s,
        }
        self._spawn(self._watch_token, remote, request)

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    def _watch_node(self, remote: Remote, state_path: str, log_offset: int) -> None:
        """A connection that breaks is opened again, and the log goes on where it stopped."""
        has_ended = False
        while not self._closing.is_set():
            request = {"state_path": state_path, "run_id": self.view.plan.run_id, "log_offset": log_offset}
            error, is_final = "the node stopped telling about the run", False
            try:
                for answer in self._answers_of(remote, "watch", request):
                    log_offset = answer.get("offset", log_offset)
                    has_ended = bool(answer.get("state", {}).get("end")) or has_ended
                    self._answers.put(StreamAnswer(node=remote.node, kind=WATCH, answer=answer))
            except PreflightRefused as refusal:
                error, is_final = refusal.message, True
            except (SparkctlError, OSError) as failure:
                error = str(getattr(failure, "message", failure))
            if has_ended:
                self._answers.put(StreamAnswer(node=remote.node, kind=WATCH, is_final=True))
                return
            self._answers.put(StreamAnswer(node=remote.node, kind=WATCH, error=error, is_final=is_final))
            if is_final:
                return
            self._closing.wait(RETRY_S)

    def _watch_token(self, remote: Remote, request: dict[str, object]) -> None:
        while not self._closing.is_set():
            error = "the node stopped asking for a token"
            try:
                for answer in self._answers_of(remote, "await_token", request):
                    self._answers.put(StreamAnswer(node=remote.node, kind=TOKEN, answer=answer))
                    if "token" in answer or "gave_up" in answer:
                        return
            except (SparkctlError, OSError) as failure:
                error = str(failure)
            self._answers.put(StreamAnswer(node=remote.node, kind=TOKEN, error=error))
            self._closing.wait(RETRY_S)

    def _answers_of(self, remote: Remote, verb: str, request: dict[str, object]) -> Iterator[Answer]:
        with NodeStream(remote, verb, **request) as stream:
            while not self._closing.is_set():
                try:
                    answer = stream.read(READ_S)
                except EOFError:
                    return
                if answer is not None:
                    yield answer

    def pump(self, timeout_s: float) -> bool:
        """Take what came in; waits up to `timeout_s` for the first. True when something came."""
        try:
            item = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return False
        while True:
            self._take(item)
            try:
                item = self._answers.get_nowait()
            except queue.Empty:
                return True

    def _take(self, item: StreamAnswer) -> None:
        view = self.view.nodes[item.node]
        if item.kind == TOKEN:
            self._take_token(item)
        elif item.answer is not None:
            view.feed(item.answer, self.clock())
        elif item.is_final:
            view.gave_up, view.told_all = item.error, True
        else:
            view.lost = item.error

    def _take_token(self, item: StreamAnswer) -> None:
        if item.answer is None:
            self.token_error = item.error
        elif "token" in item.answer:
            self.token = item.answer
        else:
            self.token_error = str(item.answer.get("not_yet") or item.answer.get("gave_up") or "")

    def close(self) -> None:
        """Readers notice within READ_S and close their streams;
        the connections' owner may close them sooner.
        """
        self._closing.set()


@contextmanager
def watching(plan: LaunchPlan, clock: Callable[[], float] = time.monotonic) -> Iterator[ClusterWatch]:
    watch = ClusterWatch(plan, clock)
    try:
        yield watch
    finally:
        watch.close()

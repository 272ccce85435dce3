"""Watch all nodes of a run at once: one thread a node reads its stream, one queue brings the answers together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from launcher.call_node import Answer, NodeStream
from launcher.cluster_view import ClusterView
from launcher.errors import SparkctlError
from launcher.plan import LaunchPlan
from launcher.remote import Remote

READ_S = 0.5
TOKEN_STREAM = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnswer:
    """One answer of one stream: `kind` "watch" or "token"; `error` when the stream broke, neither at its end."""

    node: str
    kind: str
    answer: Answer | None = None
    error: Exception | None = None


class ClusterWatch:
    """Feeds a ClusterView. `clock` gives seconds (monotonic)."""

    def __init__(self, plan: LaunchPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.view = ClusterView(plan, clock())
        self.token: Answer | None = None
        self.token_error = ""
        self.log_lines: list[tuple[str, str]] = []
        self._answers: queue.SimpleQueue[StreamAnswer] = queue.SimpleQueue()
        self._streams: list[NodeStream] = []
        self._closing = threading.Event()

    def open(self, remotes: Mapping[str, Remote], *, from_log_end: bool = False) -> None:
        for node in self.view.plan.nodes:
            self._open(
                remotes[node.name], "watch", state_path=node.state_path, run_id=self.view.plan.run_id,
                log_offset=-1 if from_log_end else 0,
            )  # fmt: skip

    def await_token(self, remote: Remote, *, api_key: str | None, timeout_s: float) -> None:
        """Ask the head for a first token as soon as it can give one."""
        api = self.view.plan.api
        self._open(
            remote, "await_token", host=api.probe_host, port=api.port, api_key=api_key,
            timeout_s=timeout_s, request_timeout_s=timeout_s,
        )  # fmt: skip

    def _open(self, remote: Remote, verb: str, **values: object) -> None:
        threading.Thread(target=self._read, args=(remote, verb, values), daemon=True).start()

    def _read(self, remote: Remote, verb: str, values: dict[str, object]) -> None:
        kind = "watch" if verb == "watch" else TOKEN_STREAM
        try:
            stream = NodeStream(remote, verb, **values)
            self._streams.append(stream)
            while not self._closing.is_set():
                answer = stream.read(READ_S)
                if answer is not None:
                    self._answers.put(StreamAnswer(node=remote.node, kind=kind, answer=answer))
        except EOFError:
            self._answers.put(StreamAnswer(node=remote.node, kind=kind))
        except (SparkctlError, OSError) as error:
            if not self._closing.is_set():
                self._answers.put(StreamAnswer(node=remote.node, kind=kind, error=error))

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
        if item.kind == TOKEN_STREAM:
            self._take_token(item)
        elif item.answer is not None:
            self.log_lines += [(item.node, line) for line in view.feed(item.answer, self.clock())]
        elif item.error is not None:
            view.lost = str(item.error)
        else:
            view.stream_ended = True
            if not view.end:
                view.lost = "the node stopped telling about the run"

    def _take_token(self, item: StreamAnswer) -> None:
        if item.error is not None:
            self.token_error = str(item.error)
        elif item.answer is not None and "token" in item.answer:
            self.token = item.answer
        elif item.answer is not None:
            self.token_error = str(item.answer.get("not_yet") or item.answer.get("gave_up") or "")

    def close(self) -> None:
        self._closing.set()
        for stream in self._streams:
            stream.close()


@contextmanager
def watching(plan: LaunchPlan, clock: Callable[[], float] = time.monotonic) -> Iterator[ClusterWatch]:
    watch = ClusterWatch(plan, clock)
    try:
        yield watch
    finally:
        watch.close()

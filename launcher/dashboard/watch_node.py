"""One node of one run, followed: two streams, one of its state and figures, one of its log. Reads only."""

from __future__ import annotations

import threading
from collections.abc import Callable

from launcher.call_node import Answer, NodeStream
from launcher.dashboard.recent_errors import ErrorReader
from launcher.dashboard.run_facts import NodeNow
from launcher.engine_phase import Phase, PhaseTracker
from launcher.errors import NodeFailed, SparkctlError
from launcher.log_lines import LogLines
from launcher.plan import LaunchPlan, NodePlan
from launcher.remote import Remote
from launcher.run_on_all import Result

PERIOD_S = 2.0
READ_S = 0.5
RETRY_S = 3.0
# Of a run that serves already only the newest lines are read: its log may hold days.
TAIL_LINES = 2000


class NodeWatch:
    """Threads write, `now` reads. `clock` gives seconds (monotonic)."""

    def __init__(self, node: NodePlan, plan: LaunchPlan, remote: Remote, *, api_key: str | None,
                 from_start: bool, mask: Callable[[str], str],
                 clock: Callable[[], float]) -> None:  # fmt: skip
        self.node = node
        self._plan = plan
        self._remote = remote
        self._api_key = api_key
        self._from_start = from_start
        self._mask = mask
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._heard: Result[Answer | None] | None = None
        self._heard_s = 0.0
        self._metrics: Answer = {"failed": "not asked yet"}
        self._log_text = Phase.STARTING.label
        self._start_reading()

    def _start_reading(self) -> None:
        self._tracker = PhaseTracker(rank_is_head=self.node.is_head)
        self._errors = ErrorReader(self.node.name, self.node.ranks[0], self._mask)
        self._log_text = Phase.STARTING.label

    def open(self) -> None:
        for target in (self._watch_state, self._watch_log):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        """The threads notice within READ_S."""
        self._closing.set()

    def now(self) -> NodeNow:
        with self._lock:
            return NodeNow(
                plan=self.node,
                heard=self._heard,
                heard_s=self._heard_s,
                phase=self._tracker.phase if self._from_start else None,
                phase_text=self._log_text if self._from_start else "",
                errors=self._errors.newest,
            )

    def metrics(self) -> tuple[float, Answer]:
        """When the node last told, and what /metrics said then."""
        with self._lock:
            return self._heard_s, self._metrics

    @property
    def is_ready(self) -> bool:
        """Its log says so, or nobody has seen its start."""
        with self._lock:
            return not self._from_start or self._tracker.phase is Phase.READY

    def _watch_state(self) -> None:
        request = {
            "run_id": self._plan.run_id,
            "period_s": PERIOD_S,
            "api_key": self._api_key,
            **endpoint(self.node, self._plan),
        }
        self._repeat("observe", request, self._take_state, self._lost)

    def _take_state(self, answer: Answer) -> None:
        with self._lock:
            self._heard, self._heard_s = Result(value=answer["run"]), self._clock()
            self._metrics = answer["metrics"]

    def _lost(self, error: SparkctlError) -> None:
        with self._lock:
            self._heard, self._heard_s = Result(error=error), self._clock()
            self._metrics = {"failed": error.message}

    def _watch_log(self) -> None:
        request = {
            "run_id": self._plan.run_id,
            "lines": 0 if self._from_start else TAIL_LINES,
            "follow": True,
        }
        # A node that cannot be reached is told by the other stream.
        self._repeat("read_log", request, self._take_log, lambda error: None)

    def _take_log(self, answer: Answer) -> None:
        for line in self._splitter.feed(answer.get("log", "").encode("latin-1")):
            with self._lock:
                event = self._tracker.feed(line)
                self._log_text = event.text if event else self._log_text
                self._errors.feed(line)

    def _repeat(self, verb: str, request: dict[str, object], take: Callable[[Answer], None],
                lost: Callable[[SparkctlError], None]) -> None:  # fmt: skip
        """Opens the stream again whenever it breaks."""
        while not self._closing.is_set():
            try:
                if verb == "read_log":  # it sends its lines once more
                    self._splitter = LogLines()
                    with self._lock:
                        self._start_reading()
                with NodeStream(self._remote, verb, state_path=self.node.state_path, **request) as stream:
                    while not self._closing.is_set():
                        answer = stream.read(READ_S)
                        if answer is not None:
                            take(answer)
            except EOFError as end:
                lost(NodeFailed(f"the node stopped telling about the run: {end}", node=self.node.name))
            except SparkctlError as error:
                lost(error)
            self._closing.wait(RETRY_S)


def endpoint(node: NodePlan, plan: LaunchPlan) -> dict[str, object]:
    """Where this node's engine answers /metrics: the API on the head, a health port on the others."""
    if node.is_head:
        return {"host": plan.api.probe_host, "port": plan.api.port}
    return {"host": "127.0.0.1", "port": int(node.argv[node.argv.index("--port") + 1])}

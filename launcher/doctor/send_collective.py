"""Run the collective probe: one rank a node, in the engine's own Python and environment."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from launcher.call_node import NodeStream
from launcher.doctor.collective_result import (
    IMPORT_LIMIT_S,
    SIZES_BYTES,
    SMALL_BYTES,
    CollectiveResult,
    from_lines,
)
from launcher.doctor.engine_python import python_of
from launcher.errors import SparkctlError
from launcher.make_plan import run_ports
from launcher.plan import LaunchPlan
from launcher.remote import Remote
from launcher.run_on_all import run_on_all

# For the ranks to meet, and again for all all-reduces; importing torch is not in it.
LIMIT_S = 60.0
OPERATION_TIMEOUT_S = 20
# A rank that waits in vain for another is ended by the limit; this only stands behind it.
MEETING_SLACK_S = 10
# Once a rank has failed the others wait in vain: they may still tell why they end, if they do.
LAST_WORDS_S = 5.0
# A size that would take longer is left out: the ones before it have shown how slow the link is.
LONGEST_S = 6.0
ROUNDS = 10
# The run's block of ports: not its first (rendezvous) and not its last (heartbeat).
PORT_OFFSET = 5
# Also where the engine's own log would be asked for it.
NCCL_TALK = {"NCCL_DEBUG": "INFO"}
STEPS = {"imported": "torch is loaded on all nodes", "joined": "all ranks have met"}

Tell = Callable[[str], None]


def send_collective(
    plan: LaunchPlan,
    remotes: Mapping[str, Remote],
    *,
    limit_s: float = LIMIT_S,
    sizes: tuple[int, ...] = SIZES_BYTES,
    tell: Tell = lambda text: None,
) -> CollectiveResult:
    """Blocks until every rank has ended:
    IMPORT_LIMIT_S and twice `limit_s` at most. Never raises for a node.
    """
    started_s = time.monotonic()
    backend = "gloo" if plan.runtime == "cpu" else "nccl"
    ranks = {node.name: node.node_rank for node in plan.nodes}
    tell(f"{backend} all-reduces between {len(ranks)} nodes, at most {limit_s:.0f} s after torch is loaded")
    steps = _Steps(len(ranks), tell)
    results = run_on_all(
        [remotes[name] for name in ranks], partial(_run_rank, plan, backend, limit_s, sizes, steps)
    )
    return from_lines(
        ranks,
        {name: item.value or [] for name, item in results.items()},
        {name: item.error.message for name, item in results.items() if item.error},
        backend=backend,
        limit_s=limit_s,
        seconds=round(time.monotonic() - started_s, 3),
    )


class _Steps:
    """Tells a step when every rank has taken it, and knows when one failed.
    Called from the threads of all ranks.
    """

    def __init__(self, num_ranks: int, tell: Tell) -> None:
        self._num_ranks = num_ranks
        self._tell = tell
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.failed_s: float | None = None

    def fail(self) -> None:
        self.failed_s = self.failed_s or time.monotonic()

    def add(self, stage: str) -> None:
        with self._lock:
            self._taken[stage] += 1
            if stage in STEPS and self._taken[stage] == self._num_ranks:
                self._tell(f"all-reduces: {STEPS[stage]}")


def _run_rank(
    plan: LaunchPlan,
    backend: str,
    limit_s: float,
    sizes: tuple[int, ...],
    steps: _Steps,
    remote: Remote,
) -> list[dict[str, Any]]:
    node = plan.node(remote.node)
    host, _ = plan.rendezvous.rsplit(":", 1)
    settings = {
        "backend": backend,
        "rendezvous": f"{host}:{run_ports(plan.run_id)[0] + PORT_OFFSET}",
        "rank": node.node_rank,
        "world_size": len(plan.nodes),
        "local_rank": 0,
        "timeout_s": OPERATION_TIMEOUT_S,
        "meeting_s": limit_s + MEETING_SLACK_S,
        "sizes_bytes": list(sizes),
        "small_bytes": SMALL_BYTES,
        "longest_s": LONGEST_S,
        "rounds": ROUNDS,
    }
    environment = node.environment | (NCCL_TALK if backend == "nccl" else {})
    deadline_s = time.monotonic() + IMPORT_LIMIT_S + 2 * limit_s + 5
    try:
        with NodeStream(
            remote,
            "collective",
            argv=python_of(node),
            environment=environment,
            settings=settings,
            import_limit_s=IMPORT_LIMIT_S,
            limit_s=limit_s,
        ) as stream:
            return _follow(stream, deadline_s, steps)
    except SparkctlError:
        steps.fail()
        raise


def _follow(stream: NodeStream, deadline_s: float, steps: _Steps) -> list[dict[str, Any]]:
    """What the rank tells, to its end; no longer than LAST_WORDS_S after another one failed."""
    lines: list[dict[str, Any]] = []
    while (now_s := time.monotonic()) < deadline_s:
        if steps.failed_s is not None and now_s > steps.failed_s + LAST_WORDS_S:
            return [*lines, {"end": {"status": None, "timed_out": True}}]
        try:
            line = stream.read(1.0)
        except EOFError:
            break
        if line is None:
            continue
        lines.append(line)
        if isinstance(line.get("probe"), dict):
            steps.add(str(line["probe"].get("stage")))
        if isinstance(line.get("end"), dict):
            if line["end"].get("status") != 0:
                steps.fail()
            return lines
    raise SparkctlError("the node did not tell how its rank ended", node=stream.node)

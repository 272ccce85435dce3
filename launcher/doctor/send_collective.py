"""Run the collective probe: one rank a node, in the engine's own Python and environment."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from launcher.call_node import NodeStream
from launcher.doctor.collective_result import SIZES_BYTES, SMALL_BYTES, CollectiveResult, from_lines
from launcher.doctor.engine_python import python_of
from launcher.errors import SparkctlError
from launcher.make_plan import run_ports
from launcher.plan import LaunchPlan
from launcher.remote import Remote
from launcher.run_on_all import run_on_all

LIMIT_S = 60.0
# Collectives and the meeting itself; importing torch is not in it.
OPERATION_TIMEOUT_S = 20
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
    """Blocks until every rank has ended, at most `limit_s` and a few seconds. Never raises for a node."""
    started_s = time.monotonic()
    backend = "gloo" if plan.runtime == "cpu" else "nccl"
    ranks = {node.name: node.node_rank for node in plan.nodes}
    tell(f"{backend} all-reduces between {len(ranks)} nodes, at most {limit_s:.0f} s")
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
    """Tells a step when every rank has taken it. Called from the threads of all ranks."""

    def __init__(self, num_ranks: int, tell: Tell) -> None:
        self._num_ranks = num_ranks
        self._tell = tell
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

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
        "sizes_bytes": list(sizes),
        "small_bytes": SMALL_BYTES,
        "longest_s": LONGEST_S,
        "rounds": ROUNDS,
    }
    environment = node.environment | (NCCL_TALK if backend == "nccl" else {})
    deadline_s = time.monotonic() + limit_s + 5
    lines: list[dict[str, Any]] = []
    with NodeStream(
        remote,
        "collective",
        argv=python_of(node),
        environment=environment,
        settings=settings,
        limit_s=limit_s,
    ) as stream:
        while time.monotonic() < deadline_s:
            try:
                line = stream.read(1.0)
            except EOFError:
                break
            if line is not None:
                lines.append(line)
                if isinstance(line.get("probe"), dict):
                    steps.add(str(line["probe"].get("stage")))
                if "end" in line:
                    return lines
    raise SparkctlError("the node did not tell how its rank ended", node=remote.node)

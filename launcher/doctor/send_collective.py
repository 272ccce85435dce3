"""Run the collective probe: one rank a node, in the engine's own Python and environment."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
ROUNDS = 10
# The run's block of ports: not its first (rendezvous) and not its last (heartbeat).
PORT_OFFSET = 5
# Also where the engine's own log would be asked for it.
NCCL_TALK = {"NCCL_DEBUG": "INFO"}


def send_collective(
    plan: LaunchPlan,
    remotes: Mapping[str, Remote],
    *,
    limit_s: float = LIMIT_S,
    sizes: tuple[int, ...] = SIZES_BYTES,
) -> CollectiveResult:
    """Blocks until every rank has ended, at most `limit_s` and a few seconds. Never raises for a node."""
    started_s = time.monotonic()
    backend = "gloo" if plan.runtime == "cpu" else "nccl"
    ranks = {node.name: node.node_rank for node in plan.nodes}
    results = run_on_all([remotes[name] for name in ranks], partial(_run_rank, plan, backend, limit_s, sizes))
    return from_lines(
        ranks,
        {name: item.value or [] for name, item in results.items()},
        {name: item.error.message for name, item in results.items() if item.error},
        backend=backend,
        limit_s=limit_s,
        seconds=round(time.monotonic() - started_s, 3),
    )


def _run_rank(
    plan: LaunchPlan, backend: str, limit_s: float, sizes: tuple[int, ...], remote: Remote
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
                if "end" in line:
                    return lines
    raise SparkctlError("the node did not tell how its rank ended", node=remote.node)

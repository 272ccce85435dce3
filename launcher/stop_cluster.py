"""End a run on its nodes, all at once. Idempotent."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.call_node import Answer, ask_node
from launcher.plan import LaunchPlan
from launcher.remote import Remote
from launcher.run_on_all import Result, run_on_all

# What the node's code may take beyond its own limits: Python's start, the last look at memory.
MARGIN_S = 10.0
# The supervisor drains the head (2.5 s) and ends what is left; after this, everything is SIGKILLed.
SUPERVISOR_TIMEOUT_S = 4.5


def stop_nodes(
    plan: LaunchPlan, remotes: Mapping[str, Remote], *, memory_timeout_s: float = 0.0
) -> dict[str, Result[Answer]]:
    """End the plan's run on those of its nodes that have a remote. Never raises for a node: see the results."""

    def stop(remote: Remote) -> Answer:
        return stop_run_on(
            remote, plan.node(remote.node).state_path, plan.run_id, memory_timeout_s=memory_timeout_s
        )

    return run_on_all(list(remotes.values()), stop)


def stop_run_on(remote: Remote, state_path: str, run_id: str, *, memory_timeout_s: float = 0.0) -> Answer:
    """End one run on one node; the answer of `launcher/node/stop_run.py`."""
    return ask_node(
        remote,
        "stop",
        timeout_s=SUPERVISOR_TIMEOUT_S + memory_timeout_s + MARGIN_S,
        state_path=state_path,
        run_id=run_id,
        timeout_s_supervisor=SUPERVISOR_TIMEOUT_S,
        memory_timeout_s=memory_timeout_s,
    )

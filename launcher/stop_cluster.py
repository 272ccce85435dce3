"""End a run on its nodes, all at once. Idempotent."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.call_node import Answer, ask_node
from launcher.plan import LaunchPlan
from launcher.remote import Remote
from launcher.run_on_all import Result, errors_of, run_on_all

# What the node's code may take beyond its own limits: Python's start, the last look at memory.
MARGIN_S = 10.0
# The supervisor drains the head (2.5 s) and ends what is left; after this, everything is SIGKILLed.
SUPERVISOR_TIMEOUT_S = 4.5


def stop_nodes(plan: LaunchPlan, remotes: Mapping[str, Remote], *, memory_timeout_s: float = 0.0,
               refuse_start: bool = False) -> dict[str, Result[Answer]]:  # fmt: skip
    """End the plan's run on those of its nodes that have a remote. Never raises for a node: see the results.

    `refuse_start`: also where the run's start has not arrived yet, it will find the run ended.
    """

    def stop(remote: Remote) -> Answer:
        return stop_run_on(
            remote, plan.node(remote.node).state_path, plan.run_id,
            memory_timeout_s=memory_timeout_s, refuse_start=refuse_start,
        )  # fmt: skip

    return run_on_all(list(remotes.values()), stop)


def stop_run_on(remote: Remote, state_path: str, run_id: str, *, memory_timeout_s: float = 0.0,
                refuse_start: bool = False) -> Answer:  # fmt: skip
    """End one run on one node; the answer of `launcher/node/stop_run.py`."""
    return ask_node(
        remote,
        "stop",
        timeout_s=SUPERVISOR_TIMEOUT_S + memory_timeout_s + MARGIN_S,
        state_path=state_path,
        run_id=run_id,
        node=remote.node,
        timeout_s_supervisor=SUPERVISOR_TIMEOUT_S,
        memory_timeout_s=memory_timeout_s,
        refuse_start=refuse_start,
    )


def not_ended(results: Mapping[str, Result[Answer]]) -> dict[str, str]:
    """Why the run may still live, of each node where that is so."""
    left = {
        name: f"pid {result.value['left'][0]['pid']} does not end"
        for name, result in results.items()
        if result.value is not None and result.value["left"]
    }
    return {name: error.message for name, error in errors_of(results).items()} | left

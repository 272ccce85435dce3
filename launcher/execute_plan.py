"""Carry out a LaunchPlan: start the supervisor of every node. Undone in full when one node refuses."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.call_node import ask_node, encoded_node_code
from launcher.errors import Interrupted, PreflightRefused, SparkctlError
from launcher.plan import LaunchPlan, NodePlan
from launcher.remote import Remote
from launcher.run_on_all import errors_of, group_by_reason, run_on_all
from launcher.stop_cluster import not_ended, stop_nodes

START_TIMEOUT_S = 30.0


def start_nodes(plan: LaunchPlan, remotes: Mapping[str, Remote], *, token: str, api_key: str | None) -> None:
    """Start the head first, then the workers at once: of two launches at the same moment the one that gets
    the head wins, and the other has started nothing.

    Raises the error of the first node that failed, after everything was ended again: also on nodes whose
    answer did not come, or whose start is still on its way (Ctrl-C).
    """
    tried = {plan.head.name}
    try:
        _start_some(plan, {plan.head.name: remotes[plan.head.name]}, token, api_key, tried)
        workers = {node.name: remotes[node.name] for node in plan.nodes[1:]}
        tried.update(workers)
        _start_some(plan, workers, token, None, tried)
    except BaseException as error:
        undo_start(plan, {name: remotes[name] for name in tried}, error)
        raise


def _start_some(
    plan: LaunchPlan, remotes: Mapping[str, Remote], token: str, api_key: str | None, tried: set[str]
) -> None:
    secrets = {"api-key": api_key} if api_key else {}
    results = run_on_all(
        list(remotes.values()), lambda remote: _start(plan, plan.node(remote.node), remote, token, secrets)
    )
    errors = errors_of(results)
    # A node that refused has written nothing.
    tried.difference_update(name for name, error in errors.items() if isinstance(error, PreflightRefused))
    if errors:
        raise _first(errors)


def undo_start(plan: LaunchPlan, remotes: Mapping[str, Remote], error: BaseException) -> None:
    """End the run on these nodes; where that fails, `error` says so too."""
    try:
        left = not_ended(stop_nodes(plan, remotes, refuse_start=True))
    except KeyboardInterrupt as again:
        hint = f"sparkctl down --run {plan.run_id}"
        raise Interrupted(
            f"interrupted while ending run {plan.run_id}: it may still live", hint=hint
        ) from again
    if left and isinstance(error, SparkctlError):
        listed = "; ".join(f"{name}: {why}" for name, why in left.items())
        error.message += f"\nnot ended on {listed}. When it can be reached: sparkctl down --run {plan.run_id}"


def _first(errors: Mapping[str, SparkctlError]) -> SparkctlError:
    """The error to show, with the others in its message."""
    name, error = next(iter(errors.items()))
    if len(errors) > 1:
        others = {key: other for key, other in errors.items() if key != name}
        error.message += "; also " + "; ".join(str(group) for group in group_by_reason(others))
    return error


def _start(plan: LaunchPlan, node: NodePlan, remote: Remote, token: str, secrets: Mapping[str, str]) -> None:
    ask_node(
        remote,
        "start",
        timeout_s=START_TIMEOUT_S,
        state_path=node.state_path,
        run_id=plan.run_id,
        node=_node_description(plan, node, token),
        secrets=dict(secrets),
        code=encoded_node_code(),
    )


def _node_description(plan: LaunchPlan, node: NodePlan, token: str) -> dict[str, object]:
    """What the supervisor reads (`launcher/node/supervise.py`)."""
    heartbeat = plan.heartbeat
    return {
        "name": node.name,
        "is_head": node.is_head,
        "runs": "router" if plan.is_router else "engine",
        "argv": list(node.argv),
        "environment": node.environment,
        "container": node.container,
        "token": token,
        "api": {"host": plan.api.probe_host, "port": plan.api.port} if node.is_head else None,
        "heartbeat": {
            "address": heartbeat.address,
            "port": heartbeat.port,
            "num_workers": heartbeat.num_workers,
            "timeout_s": heartbeat.timeout_s,
        }
        if heartbeat
        else None,
        "limits": {"freeze_timeout_s": plan.limits.freeze_timeout_s, "drain_s": plan.limits.drain_s},
    }

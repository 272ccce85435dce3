"""What a recorded run is doing now, node by node, with a timed probe that must generate a token."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from launcher.call_node import Answer, ask_node
from launcher.connect import SshOptions, connect_all
from launcher.dashboard.engine_metrics import read_sample
from launcher.dashboard.history import Figures, figures_of
from launcher.errors import SparkctlError
from launcher.failure_report import exit_text
from launcher.plan import LaunchPlan, NodePlan
from launcher.remote import Remote
from launcher.run_on_all import Result, run_on_all
from launcher.run_record import RunRecord
from launcher.spec_figures import SpecFigures, read_spec_figures

PROBE_TIMEOUT_S = 10.0
# A node answers in milliseconds; more means that it, or the network to it, is in trouble.
ANSWER_TIMEOUT_S = 15.0

NodeStatus = Literal["serving", "loading", "frozen", "dead", "orphaned", "not-serving", "unreachable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    name: str
    ranks: tuple[int, ...]
    status: NodeStatus
    detail: str
    num_processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """`probe`: {"token", "seconds"} or {"failed": reason}; None when the head is not serving.
    `metrics`: one scrape of the head's engine; what it does not give is None.
    """

    run_id: str
    recipe: str
    url: str
    part: str | None
    verdict: NodeStatus
    nodes: tuple[NodeReport, ...]
    probe: dict[str, Any] | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    metrics: Figures | None = None
    metrics_problem: str = ""
    speculation: SpecFigures | None = None


def read_status(record: RunRecord, key: str | None, options: SshOptions) -> ClusterStatus:
    """Asks all nodes at once, then the head's API. Never raises for a node."""
    plan = record.plan
    with connect_all([node.node for node in plan.nodes], options) as remotes:
        runs = run_on_all(list(remotes.values()), lambda remote: _ask(plan.node(remote.node), plan, remote))
        head = remotes[plan.head.name]
        alive = _is_running(runs[plan.head.name])
        probe = probe_token(head, plan, key) if alive else None
        serving = probe is not None and "token" in probe
        has_engine = serving and not plan.is_router
        engine = server_info(head, plan, key) if has_engine else {}
        figures, speculation, problem = _metrics(head, plan, key) if has_engine else (None, None, "")
    was_ready = record.status == "ready"
    reports = tuple(
        describe_node(node, runs[node.name], serving=serving, was_ready=was_ready) for node in plan.nodes
    )
    return ClusterStatus(
        run_id=plan.run_id,
        recipe=plan.recipe,
        url=f"{plan.api.url}/v1",
        part=plan.part,
        verdict=worst_status(reports),
        nodes=reports,
        probe=probe,
        engine=engine,
        metrics=figures,
        metrics_problem=problem,
        speculation=speculation,
    )


def _ask(node: NodePlan, plan: LaunchPlan, remote: Remote) -> Answer | None:
    runs = ask_node(
        remote, "runs", timeout_s=ANSWER_TIMEOUT_S, state_path=node.state_path, run_id=plan.run_id
    )["runs"]
    return runs[0] if runs else None


def _is_running(result: Result[Answer | None]) -> bool:
    return result.error is None and (result.value or {}).get("status") == "running"


def describe_node(
    node: NodePlan, result: Result[Answer | None], *, serving: bool, was_ready: bool
) -> NodeReport:
    """Pure. `serving`: the head has just generated a token; `was_ready`: it had done so once."""

    def report(status: NodeStatus, detail: str, processes: int = 0) -> NodeReport:
        return NodeReport(
            name=node.name, ranks=node.ranks, status=status, detail=detail, num_processes=processes
        )

    if result.error is not None:
        return report("unreachable", result.error.message)
    run = result.value
    if run is None:
        return report("dead", "the node knows nothing of this run")
    processes = run["processes"]
    state = run.get("state", {})
    if run["status"] in ("ended", "damaged"):
        end = state.get("end") or {}
        how = exit_text(end)
        what = (
            end.get("what")
            or run.get("problem")
            or "it ended without a word: the node was rebooted, or all was killed"
        )
        return report("dead", f"{what} ({how})" if how else str(what))
    if run["status"] == "orphaned":
        return report("orphaned", f"{len(processes)} process(es) live without a supervisor", len(processes))
    stopped = [process for process in processes if process["state"] == "T"]
    if run["status"] == "frozen" or stopped:
        who = stopped[0] if stopped else {"pid": state.get("supervisor_pid"), "title": "supervisor"}
        return report(
            "frozen", f"pid {who['pid']} ({who['title'][:40]}) is stopped (SIGSTOP)", len(processes)
        )
    if serving:
        return report("serving", "", len(processes))
    if was_ready:
        return report("not-serving", "its processes live, but the head generates no token", len(processes))
    return report("loading", "not ready yet", len(processes))


def worst_status(reports: tuple[NodeReport, ...]) -> NodeStatus:
    return worst_of({report.status for report in reports})


def worst_of(words: Collection[NodeStatus]) -> NodeStatus:
    """Of nodes: one dead rank and the cluster does not serve. Of groups: not all that was started does."""
    order: tuple[NodeStatus, ...] = (
        "orphaned",
        "unreachable",
        "frozen",
        "dead",
        "not-serving",
        "loading",
        "serving",
    )
    return next(word for word in order if word in words)


def probe_token(head: Remote, plan: LaunchPlan, key: str | None) -> dict[str, Any]:
    """Ask for one token, timed. A prompt of its own each time would not be cached; one token costs a step."""
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    reply = _http(head, plan, key, "POST", "/generate", body)
    if "failed" in reply:
        return {"failed": reply["failed"]}
    if reply["status"] != 200:
        return {"failed": f"HTTP {reply['status']}: {reply['body'][:200]}"}
    try:
        value = json.loads(reply["body"])
        if value["meta_info"]["completion_tokens"] < 1:
            return {"failed": "the engine answered without a token"}
        return {"token": value["text"], "seconds": round(reply["seconds"], 4)}
    except (ValueError, KeyError, TypeError) as error:
        return {"failed": f"the engine's answer was not understood: {error}"}


def _http(
    head: Remote, plan: LaunchPlan, key: str | None, method: str, path: str, body: object = None
) -> Answer:
    try:
        return ask_node(
            head, "http", timeout_s=PROBE_TIMEOUT_S + 5, host=plan.api.probe_host, port=plan.api.port,
            method=method, path=path, body=body, api_key=key, request_timeout_s=PROBE_TIMEOUT_S,
        )  # fmt: skip
    except SparkctlError as error:
        return {"failed": str(error)}


def server_info(head: Remote, plan: LaunchPlan, key: str | None) -> dict[str, Any]:
    """A few of the engine's own words.
    /server_info holds the API key three times, so nothing else is kept.
    """
    reply = _http(head, plan, key, "GET", "/server_info")
    if reply.get("status") != 200:
        return {"failed": reply.get("failed") or f"HTTP {reply['status']}"}
    info = json.loads(reply["body"])
    wanted = (
        "version",
        "tp_size",
        "ep_size",
        "nnodes",
        "max_total_num_tokens",
        "context_length",
        "served_model_name",
    )
    return {name: info[name] for name in wanted if name in info}


def _metrics(
    head: Remote, plan: LaunchPlan, key: str | None
) -> tuple[Figures | None, SpecFigures | None, str]:
    """One scrape of the head, and why there is none."""
    reply = _http(head, plan, key, "GET", "/metrics")
    if reply.get("status") != 200:
        return None, None, str(reply.get("failed") or f"/metrics answered HTTP {reply['status']}")
    try:
        return figures_of([read_sample(0.0, reply["body"])]), read_spec_figures(reply["body"]), ""
    except ValueError as error:
        return None, None, str(error)


def as_json(status: ClusterStatus) -> Mapping[str, Any]:
    from dataclasses import asdict

    value = asdict(status)
    if value["metrics"] is not None:  # a wait beyond the largest bound is inf, which JSON has not
        value["metrics"] = {
            name: figure if figure is None or isfinite(figure) else None
            for name, figure in value["metrics"].items()
        }
    return value

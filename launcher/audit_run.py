"""Ask the ranks of a run, and its head, what is in effect, and compare it with the plan."""

from __future__ import annotations

import time
from collections.abc import Mapping

from launcher.audit_plan import Difference, audit_reports, audit_server_info, expects_reports
from launcher.call_node import ask_node
from launcher.cluster_status import server_info
from launcher.errors import AuditFailed, NodeUnreachable
from launcher.plan import LaunchPlan
from launcher.rank_report import NodeReports, parse_reports
from launcher.remote import Remote
from launcher.run_on_all import run_on_all

READ_TIMEOUT_S = 15.0
PAUSES_S = (1.0, 3.0)
MAX_TOLD = 6


def gather_reports(plan: LaunchPlan, remotes: Mapping[str, Remote]) -> dict[str, NodeReports]:
    """Of every node at once; raises the error of the first node that did not answer."""

    def ask(remote: Remote) -> NodeReports:
        node = plan.node(remote.node)
        answer = ask_node(
            remote, "reports", timeout_s=READ_TIMEOUT_S, state_path=node.state_path, run_id=plan.run_id
        )
        return parse_reports(answer)

    results = run_on_all(list(remotes.values()), ask)
    return {name: result.unwrap() for name, result in results.items()}


def audit_run(plan: LaunchPlan, remotes: Mapping[str, Remote], key: str | None) -> tuple[Difference, ...]:
    """Reports of all ranks and the head's /server_info."""
    reports = audit_reports(plan, gather_reports(plan, remotes)) if expects_reports(plan) else ()
    return (*reports, *audit_server_info(plan, server_info(remotes[plan.head.name], plan, key)))


def require_effect(plan: LaunchPlan, remotes: Mapping[str, Remote], *, skip: tuple[str, ...]) -> None:
    """Before `up` says ready. Raises AuditFailed when a rank does not run as planned, or has not said so."""
    if "audit" in skip or "engine-plugin" in skip or not expects_reports(plan):
        return
    found = audit_reports(plan, _gather_patiently(plan, remotes))
    if found:
        raise audit_failed(plan, found)


def _gather_patiently(plan: LaunchPlan, remotes: Mapping[str, Remote]) -> dict[str, NodeReports]:
    """A start of many minutes must not end because one connection broke in this moment."""
    for pause_s in PAUSES_S:
        try:
            return gather_reports(plan, remotes)
        except NodeUnreachable:
            time.sleep(pause_s)
    return gather_reports(plan, remotes)


def audit_failed(plan: LaunchPlan, found: tuple[Difference, ...]) -> AuditFailed:
    lines = [f"{item} (next: {item.next_step})" for item in found[:MAX_TOLD]]
    if len(found) > MAX_TOLD:
        lines.append(f"and {len(found) - MAX_TOLD} more")
    return AuditFailed(
        f"every rank must run as planned, got {len(found)} difference(s)\n  " + "\n  ".join(lines),
        hint=f"the reports and logs are kept: sparkctl logs --run {plan.run_id}",
    )

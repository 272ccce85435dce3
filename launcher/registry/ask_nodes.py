"""What nodes have of what a lock pins: asked only when there is a lock. Read-only."""

from __future__ import annotations

import time
from collections.abc import Mapping

from launcher.doctor.finding import Finding
from launcher.doctor.gather_reports import gather_reports, questions_for_plan
from launcher.doctor.node_report import NodeReport
from launcher.errors import SparkctlError
from launcher.plan import LaunchPlan
from launcher.registry.check_lock import NodeContent, node_findings
from launcher.remote import Remote
from launcher.run_on_all import Result, run_on_all
from launcher.weights.file_list import Verified
from launcher.weights.follow import follow


def lock_findings(plan: LaunchPlan, remotes: Mapping[str, Remote]) -> tuple[Finding, ...]:
    """Versions, contents and model files of every node against plan.lock; nothing without one."""
    if plan.lock is None:
        return ()
    reports = gather_reports(remotes, questions_for_plan(plan), ("software",), time.time)
    weights = _weights(plan, remotes) if plan.lock.files else {}
    return node_findings(
        plan, {node.name: _content(plan, reports[node.name], weights.get(node.name)) for node in plan.nodes}
    )


def _weights(plan: LaunchPlan, remotes: Mapping[str, Remote]) -> Mapping[str, Result[Verified]]:
    def one(remote: Remote) -> Verified:
        node = plan.node(remote.node)
        return follow(
            remote, "weights_verify", Verified, lambda progress: None, models=node.node.paths.models,
            model_path=node.model_path, quick=True,
        )  # fmt: skip

    return run_on_all([remotes[node.name] for node in plan.nodes], one)


def _content(plan: LaunchPlan, report: NodeReport, weights: Result[Verified] | None) -> NodeContent:
    identity = report.software.identity if report.software else None
    reasons = []
    if identity is not None and identity.problem:
        reasons.append(identity.problem)
        identity = None
    elif report.software is None:
        reasons.append("; ".join(report.problems.values()) or "the node did not tell its software")
    elif identity is None and plan.runtime != "docker":
        reasons.append("the engine's environment was not told")
    files = None
    if weights is not None and weights.value is not None:
        wrong = {name: "changed since it was hashed" for name, _ in weights.value.wrong}
        # A lock pins the whole checkpoint; a node from which a push left parts out knows their hashes.
        files = {**weights.value.files, **weights.value.whole, **wrong}
        files = {name: value for name, value in files.items() if name not in weights.value.missing}
    elif weights is not None:
        error = weights.error
        reasons.append(error.message if isinstance(error, SparkctlError) else str(error))
    return NodeContent(identity=identity, files=files, why="; ".join(reasons))

"""Pure: turn the view of a failed cluster into what a person needs:
node, rank, exit status, cause, next command.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from launcher.cluster_view import HEAD, SECONDARY_ENDS, ClusterView, NodeView
from launcher.plan import LaunchPlan
from launcher.root_cause import ExitInfo, RankLabel, RootCause, find_root_cause

# Ends of the engine by itself: its log may say why.
ENGINE_KINDS = ("rank", "child", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """`who`: "rank 2", "group 1: rank 2" of a deployment, or "router"."""

    node: str
    who: str
    what: str
    exit_text: str
    cause: str
    explanation: str
    hint: str
    notes: tuple[str, ...]
    last_lines: tuple[str, ...]

    @property
    def message(self) -> str:
        """What happened, first line; then the cause, when a log tells it."""
        status = f" ({self.exit_text})" if self.exit_text else ""
        lines = [f"{self.who} failed: {self.what}{status}"]
        if self.cause:
            lines.append(f"cause: {self.cause}")
        if self.explanation:
            lines.append(self.explanation)
        lines += self.notes
        if self.last_lines:
            lines += ["last lines of its log:", *(f"  | {line[:300]}" for line in self.last_lines)]
        return "\n".join(lines)


def describe_failure(view: ClusterView, now_s: float) -> FailureReport | None:
    """None while nothing failed."""
    failed, problem = _where_it_began(view, now_s)
    if failed is None:
        return None
    cause = find_root_cause(_logs(view), _exits(view))
    culprit = _culprit(view, failed, cause)
    own = cause if cause.rank == _label(culprit) and _may_have_cause(culprit) else None
    if culprit is not failed:
        problem = f"{_what_proves_it(culprit)}; {failed.name}: {problem}"
    return FailureReport(
        node=culprit.name,
        who=_who(view.plan, culprit),
        what=problem,
        exit_text=exit_text(failed.end or {}) if culprit is failed else "",
        cause=own.line if own else "",
        explanation=own.explanation if own and own.found else "",
        hint=_hint(view, culprit, own),
        notes=own.notes if own else (),
        last_lines=() if own and own.found else tuple(list(culprit.lines)[-5:]),
    )


def _where_it_began(view: ClusterView, now_s: float) -> tuple[NodeView | None, str]:
    """The node that failed first and its problem. A node that only lost a peer points at that peer."""
    name = view.first_failure(now_s)
    if name is None:
        return None, ""
    node = view.nodes[name]
    end = node.end or {}
    peer = view.plan.head.name if end.get("peer") == HEAD else end.get("peer")
    if end.get("kind") in SECONDARY_ENDS and peer in view.nodes:
        other = view.nodes[peer]
        return other, other.problem() or f"{end['what']} (says {name})"
    return node, view.failed(now_s)[name]


def _who(plan: LaunchPlan, node: NodeView) -> str:
    rank = ", ".join(f"rank {rank}" for rank in node.plan.ranks[:1])
    return ": ".join(filter(None, (plan.part, rank)))


def _label(node: NodeView) -> RankLabel:
    return RankLabel(node=node.name, rank=node.plan.ranks[0] if node.plan.ranks else 0)


def _logs(view: ClusterView) -> dict[RankLabel, list[str]]:
    return {_label(node): list(node.lines) for node in view.nodes.values()}


def _exits(view: ClusterView) -> dict[RankLabel, ExitInfo]:
    exits = {}
    for node in view.nodes.values():
        end = node.end
        if end is None:
            continue
        code = -end["signal"] if "signal" in end else end.get("exit_code")
        exits[_label(node)] = ExitInfo(
            code=code, seen_at_s=node.end_seen_s, ended_by_launcher=end["kind"] not in ENGINE_KINDS
        )
    return exits


def _may_have_cause(node: NodeView) -> bool:
    """A node that froze, vanished or was never started has no cause in its log:
    what stands there came after.
    """
    return (node.end or {}).get("kind") in (*ENGINE_KINDS, *SECONDARY_ENDS)


def _culprit(view: ClusterView, failed: NodeView, cause: RootCause) -> NodeView:
    """The node that failed first, unless the logs prove that the engine of another one had an error of its
    own.

    What a log says of a lost neighbour proves nothing: that neighbour may be the one that failed.
    """
    if (failed.end or {}).get("kind") not in ENGINE_KINDS or not cause.found or cause.rank is None:
        return failed
    return failed if cause.is_secondary else view.nodes[cause.rank.node]


def _what_proves_it(culprit: NodeView) -> str:
    """Why this node is blamed though another one's end was seen first.

    Its engine may have ended as well, a few ms later in our eyes; an end that its supervisor brought about
    says nothing of the cause.
    """
    end = culprit.end or {}
    if end.get("kind") not in ENGINE_KINDS:
        return "its log shows the first error"
    status = exit_text(end)
    return culprit.problem() + (f" ({status})" if status else "")


def exit_text(end: dict[str, Any]) -> str:
    """ "exit status 1", "killed by SIGKILL", or empty when it is not known."""
    if "signal" in end:
        try:
            return f"killed by {signal.Signals(end['signal']).name}"
        except ValueError:
            return f"killed by signal {end['signal']}"
    return f"exit status {end['exit_code']}" if "exit_code" in end else ""


def _hint(view: ClusterView, node: NodeView, cause: RootCause | None) -> str:
    logs = f"sparkctl logs --run {view.plan.run_id} --node {node.name}"
    end = node.end or {}
    if end.get("kind") == "frozen":
        return (
            f"find out who stopped pid {end['pid']} on {node.name} (a debugger, job control),"
            " then: sparkctl up"
        )
    if end.get("kind") in ("start", "supervisor"):
        return f"{logs}; {logs} --supervisor"
    if node.end is None and node.supervisor != "alive":
        return f"find out who killed or stopped sparkctl's supervisor on {node.name}, then: sparkctl up"
    if node.end is None:
        return (
            f"check that {node.name} is up and its cable is in; on it, the run ends by itself."
            " Then: sparkctl status"
        )
    if cause and cause.found and cause.hint:
        return f"{cause.hint} Logs: {logs}"
    if end.get("signal") == signal.SIGKILL:
        return (
            f"nobody's log says why: look for the OOM killer on {node.name} (dmesg -T | grep -i oom);"
            f" logs: {logs}"
        )
    return logs

"""Pure: turn the view of a failed cluster into what a person needs: node, rank, exit status, cause, next command."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from launcher.cluster_view import SECONDARY_ENDS, ClusterView, NodeView
from launcher.root_cause import ExitInfo, RankLabel, RootCause, find_root_cause

RANK_KINDS = ("rank", "engine", "frozen")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    node: str
    rank: int
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
        lines = [f"rank {self.rank} failed: {self.what}{status}"]
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
    name = view.first_failure(now_s)
    if name is None:
        return None
    failed = view.nodes[name]
    cause = find_root_cause(_logs(view), _exits(view))
    culprit = _culprit(view, failed, cause)
    node = view.nodes[culprit.node]
    end = node.end or {}
    own = cause if cause.rank == culprit else None
    return FailureReport(
        node=culprit.node,
        rank=culprit.rank,
        what=node.problem(now_s) or failed.problem(now_s),
        exit_text=exit_text(end),
        cause=own.line if own else "",
        explanation=own.explanation if own and own.found else "",
        hint=_hint(view, failed, own),
        notes=own.notes if own else (),
        last_lines=() if own and own.found else tuple(list(node.lines)[-5:]),
    )


def _label(node: NodeView) -> RankLabel:
    return RankLabel(node=node.name, rank=node.plan.ranks[0])


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
            code=code, seen_at_s=end["at_unix"], ended_by_launcher=end["kind"] not in ("rank", "engine")
        )
    return exits


def _culprit(view: ClusterView, failed: NodeView, cause: RootCause) -> RankLabel:
    """The node whose process was seen to end first, unless the logs show that another one failed before it.

    A scheduler that was seen to die is the proof itself; an engine that ended by itself may only have
    noticed that a peer was gone, and then the logs know better.
    """
    end = failed.end or {}
    if end.get("kind") in ("rank", "frozen") and "signal" in end:
        return _label(failed)
    if (
        cause.found
        and cause.rank is not None
        and (view.nodes[cause.rank.node].end or {}).get("kind") not in SECONDARY_ENDS
    ):
        return cause.rank
    return (
        cause.rank
        if cause.found and cause.rank is not None and end.get("kind") == "engine"
        else _label(failed)
    )


def exit_text(end: dict[str, Any]) -> str:
    """ "exit status 1", "killed by SIGKILL", or empty when it is not known."""
    if "signal" in end:
        try:
            return f"killed by {signal.Signals(end['signal']).name}"
        except ValueError:
            return f"killed by signal {end['signal']}"
    return f"exit status {end['exit_code']}" if "exit_code" in end else ""


def _hint(view: ClusterView, failed: NodeView, cause: RootCause | None) -> str:
    logs = f"sparkctl logs --run {view.plan.run_id} --node {failed.name}"
    end = failed.end or {}
    if end.get("kind") == "frozen":
        return f"find out who stopped pid {end['pid']} on {failed.name} (a debugger, job control), then: sparkctl up"
    if failed.end is None:
        return f"check that {failed.name} is up and its cable is in; on it, the run ends by itself. Then: sparkctl status"
    if cause and cause.found and cause.hint:
        return f"{cause.hint} Logs: {logs}"
    if end.get("signal") == 9:
        return f"nobody's log says why: look for the OOM killer on {failed.name} (dmesg -T | grep -i oom); logs: {logs}"
    return logs

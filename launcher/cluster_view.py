"""What is known of each node of a run while it starts and serves. Pure: fed with answers and a clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from launcher.call_node import Answer
from launcher.engine_phase import Phase, PhaseTracker
from launcher.log_lines import LogLines
from launcher.plan import LaunchPlan, NodePlan

# Beats come each 0.5 s. A machine whose cores are all busy importing may hold one back for a second or two.
BEAT_LOST_S = 6.0
KEPT_LINES = 4000

DOWN = "the node, its cable or its network is down"

# An end that follows another one: the cause is on some other node.
SECONDARY_ENDS = ("peer", "peer-silent")
# What a worker's supervisor calls the head (`launcher/node/peers.py`).
HEAD = "head"


@dataclass(slots=True)
class NodeView:
    """One node: phase from its log, life signs from its supervisor."""

    plan: NodePlan
    tracker: PhaseTracker
    last_beat_s: float
    splitter: LogLines = field(default_factory=LogLines)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    text: str = "connecting"
    state: dict[str, Any] = field(default_factory=dict)
    supervisor: str = "alive"
    lost: str = ""
    gave_up: str = ""
    told_all: bool = False
    end_seen_s: float = 0.0

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def end(self) -> dict[str, Any] | None:
        return self.state.get("end") or None

    @property
    def num_ranks_alive(self) -> int:
        return len(self.state.get("ranks", {})) if not self.end else 0

    def feed(self, answer: Answer, now_s: float) -> list[str]:
        """Take one answer; returns the complete log lines in it."""
        self.last_beat_s = now_s
        self.lost = ""
        if "state" in answer:
            # By our own clock: those of the nodes may differ by seconds.
            self.end_seen_s = self.end_seen_s or (now_s if answer["state"].get("end") else 0.0)
            self.state = answer["state"]
        if "supervisor" in answer:
            self.supervisor = answer["supervisor"]
        if "log" not in answer:
            return []
        new = self.splitter.feed(answer["log"].encode("latin-1"))
        self.lines.extend(new)
        for line in new:
            event = self.tracker.feed(line)
            if event is not None:
                self.text = event.text
        return new

    def problem(self) -> str:
        """What the node itself, or its supervisor's absence, shows to be wrong; empty when nothing is."""
        if self.end:
            return str(self.end["what"])
        if self.gave_up:
            return self.gave_up
        if self.supervisor == "gone":
            return "its supervisor is gone"
        if self.supervisor == "frozen":
            return "its supervisor is stopped (SIGSTOP)"
        return ""

    def out_of_contact(self, now_s: float) -> bool:
        """We hear nothing: the node may be down, or only our own way to it."""
        return now_s - self.last_beat_s > BEAT_LOST_S


class ClusterView:
    """All nodes of a run."""

    def __init__(self, plan: LaunchPlan, now_s: float) -> None:
        self.plan = plan
        self.nodes = {
            node.name: NodeView(
                plan=node,
                tracker=PhaseTracker(rank_is_head=node.is_head),
                last_beat_s=now_s,
                text=Phase.STARTING.label,
            )
            for node in plan.nodes
        }

    def failed(self, now_s: float) -> dict[str, str]:
        """Problem of each node that has one.

        Silence alone is none: our own network may be down while the cluster serves. It takes a second
        witness, a node whose supervisor does not hear it either.
        """
        problems = {name: view.problem() for name, view in self.nodes.items()}
        for name in self._witnessed():
            if not problems[name] and self.nodes[name].out_of_contact(now_s):
                problems[name] = (
                    f"no sign of life for {BEAT_LOST_S:.0f} s, neither to us nor to its peers: {DOWN}"
                )
        return {name: problem for name, problem in problems.items() if problem}

    def _witnessed(self) -> set[str]:
        """Nodes that some other node's supervisor does not hear."""
        quiet = {peer for view in self.nodes.values() for peer in view.state.get("quiet_peers", ())}
        return {self.plan.head.name if peer == HEAD else peer for peer in quiet} & set(self.nodes)

    def silent(self, now_s: float) -> dict[str, str]:
        """Why we hear nothing, of each node that has not failed and is out of contact."""
        failed = self.failed(now_s)
        return {
            name: view.lost or "no answer"
            for name, view in self.nodes.items()
            if name not in failed and view.out_of_contact(now_s)
        }

    def first_failure(self, now_s: float) -> str | None:
        """The node where it began: the earliest end that is not the echo of another node's."""
        failed = self.failed(now_s)
        if not failed:
            return None

        def order(name: str) -> tuple[int, float]:
            view = self.nodes[name]
            if view.end is None:
                return (1, view.last_beat_s)
            return (2 if view.end["kind"] in SECONDARY_ENDS else 0, view.end_seen_s)

        return min(failed, key=order)

    def frozen(self) -> dict[str, list[int]]:
        """Pids that are stopped (SIGSTOP) on each node; a rank that stays so ends the run."""
        return {name: view.state["frozen"] for name, view in self.nodes.items() if view.state.get("frozen")}

    def all_ranks_live(self, now_s: float) -> bool:
        """Every node answers, and shows as many schedulers as it has ranks."""
        return (
            not self.failed(now_s)
            and not self.silent(now_s)
            and all(
                view.plan.container is not None or view.num_ranks_alive >= len(view.plan.ranks)
                for view in self.nodes.values()
            )
        )

"""What is known of one run at one moment: the page's state follows from this alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from launcher.call_node import Answer
from launcher.dashboard.history import History
from launcher.dashboard.recent_errors import ErrorLine
from launcher.engine_phase import Phase
from launcher.plan import NodePlan
from launcher.run_on_all import Result
from launcher.run_record import RunRecord

# A node tells every two seconds; three missed answers and what it last said is not the present any more.
SILENT_S = 8.0
# A token is the proof that a cluster serves. Older than this, it is asked for again.
PROOF_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """`heard`: the newest answer of the node or why there is none; None when nothing came so far.
    `phase`: None when the log was not seen from its start.
    """

    plan: NodePlan
    heard: Result[Answer | None] | None = None
    heard_s: float = 0.0
    phase: Phase | None = None
    phase_text: str = ""
    errors: tuple[ErrorLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """When the head last generated a token, and what went wrong since. Times are by NodeNow's clock."""

    token_s: float | None = None
    failed_s: float | None = None
    failure: str = ""
    seconds: float | None = None

    def holds(self) -> bool:
        return self.token_s is not None and (self.failed_s is None or self.token_s > self.failed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """`metrics_problem`: why there are no figures; empty when there are."""

    record: RunRecord
    nodes: tuple[NodeNow, ...] = ()
    proof: Proof = field(default_factory=Proof)
    history: History = field(default_factory=History)
    metrics_problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All runs at one time. `now_s` is monotonic, `now_unix` is the wall clock's."""

    now_s: float
    now_unix: float
    open_runs: tuple[RunNow, ...] = ()
    ended: tuple[RunRecord, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)


State = dict[str, Any]

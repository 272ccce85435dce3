"""Runs a trace with the controller, with a fixed width, or without speculation, and counts time and regret.

Requests wait in a queue and take a place in the batch as soon as one is free, as in a server under load.
Time is the cost table's; nothing else takes any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sgl_ext.speculation.acceptance_trace import RequestTrace, Trace
from sgl_ext.speculation.controller import ControllerSettings, RegretShare, SpeculationController, VerifyShape
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.request_option import AUTO
from sgl_ext.speculation.step_plan import VerifyPlan


@dataclass(slots=True, kw_only=True)
class RunResult:
    """time_ns: of all steps. plain_ns: what plain decoding would have needed for the same progress, step by
    step in the same batches. own_regret: by request, plain steps lost by the request's own time and tokens;
    worst_own_regret: the highest that any stood at."""

    time_ns: int = 0
    plain_ns: float = 0.0
    num_steps: int = 0
    num_tokens: int = 0
    own_regret: dict[int, float] = field(default_factory=dict)
    worst_own_regret: float = 0.0

    @property
    def speed(self) -> float:
        """Over plain decoding. Batches that run empty at the end of a trace weigh on no policy this way."""
        return self.plain_ns / self.time_ns

    def count(self, idx: int, own: float) -> None:
        self.own_regret[idx] = self.own_regret.get(idx, 0.0) + own
        self.worst_own_regret = max(self.worst_own_regret, self.own_regret[idx])


@dataclass(slots=True, kw_only=True)
class Running:
    idx: int
    trace: RequestTrace
    place: int = 0


class Policy(Protocol):
    """What runs a batch: admits requests, plans a step (widths, cost), and learns its result."""

    def admit(self, running: Running) -> None: ...

    def step(self, batch: Sequence[Running]) -> tuple[tuple[int, ...], int]: ...

    def result(self, accepted: tuple[int, ...]) -> None: ...

    def finish(self, running: Running) -> None: ...


def run_policy(trace: Trace, table: CostTable, policy: Policy, batch_size: int) -> RunResult:
    """Runs the whole trace with up to batch_size requests at a time."""
    queue = deque(Running(idx=idx, trace=request) for idx, request in enumerate(trace.requests))
    batch: list[Running] = []
    result = RunResult()
    while queue or batch:
        while queue and len(batch) < batch_size:
            batch.append(queue.popleft())
            policy.admit(batch[-1])
        widths, cost_ns = policy.step(batch)
        accepted = tuple(
            min(width, running.trace.runs[running.place], len(running.trace.runs) - running.place - 1)
            for running, width in zip(batch, widths, strict=True)
        )
        _account(result, table, batch, accepted, cost_ns)
        policy.result(accepted)
        for running, count in zip(batch, accepted, strict=True):
            running.place += 1 + count
        for running in [one for one in batch if one.place >= len(one.trace.runs)]:
            policy.finish(running)
            batch.remove(running)
    return result


def _account(
    result: RunResult, table: CostTable, batch: Sequence[Running], accepted: tuple[int, ...], cost_ns: int
) -> None:
    plain_ns = table.plain_ns(len(batch))
    for running, count in zip(batch, accepted, strict=True):
        result.count(running.idx, (cost_ns - plain_ns) / plain_ns - count)
    result.time_ns += cost_ns
    result.plain_ns += plain_ns * (1 + sum(accepted) / len(batch))
    result.num_steps += 1
    result.num_tokens += len(batch) + sum(accepted)


class FixedWidth:
    """Every step verifies width draft tokens of each request; width 0 is no speculation, without a draft."""

    def __init__(self, table: CostTable, width: int) -> None:
        self._table = table
        self._width = width

    def admit(self, running: Running) -> None:
        pass

    def step(self, batch: Sequence[Running]) -> tuple[tuple[int, ...], int]:
        cost_ns = self._table.step_ns(len(batch), self._width, drafted=self._width > 0)
        return (self._width,) * len(batch), cost_ns

    def result(self, accepted: tuple[int, ...]) -> None:
        pass

    def finish(self, running: Running) -> None:
        pass


class Controlled:
    """The controller as an engine drives it. lag: steps that are planned before a result is known (overlapped
    scheduling: 1). Conversations are keyed by the request they go on from."""

    def __init__(
        self,
        table: CostTable,
        settings: ControllerSettings,
        *,
        lag: int = 0,
        watch: Callable[[VerifyPlan], None] | None = None,
    ) -> None:
        self.controller = SpeculationController(table, settings)
        self._table = table
        self._lag = lag
        self._watch = watch
        self._waiting: deque[tuple[VerifyPlan, tuple[int, ...]]] = deque()
        self._plan: VerifyPlan | None = None
        self.kinds: dict[str, int] = {}
        self.width_steps: dict[int, int] = {}
        self._is_own = settings.share is RegretShare.OWN
        self._charged: dict[str, float] = {}
        self.worst_charged = 0.0

    def admit(self, running: Running) -> None:
        keys = () if running.trace.turn_of < 0 else (_key(running.trace.turn_of),)
        self.controller.admit(str(running.idx), AUTO, keys)

    def step(self, batch: Sequence[Running]) -> tuple[tuple[int, ...], int]:
        draft = self.controller.plan_draft([str(running.idx) for running in batch])
        confidence = None
        if draft.drafts and all(running.trace.confidence for running in batch):
            confidence = [running.trace.confidence[running.place] for running in batch]
        plan = self.controller.plan_verify(draft, confidence)
        self._plan = plan
        if self._watch is not None:
            self._watch(plan)
        self.kinds[draft.kind] = self.kinds.get(draft.kind, 0) + 1
        self.width_steps[plan.graph_width] = self.width_steps.get(plan.graph_width, 0) + 1
        return plan.widths, plan.cost_ns

    def result(self, accepted: tuple[int, ...]) -> None:
        assert self._plan is not None
        self._charge(self._plan, accepted)
        self._waiting.append((self._plan, accepted))
        while len(self._waiting) > self._lag:
            self.controller.observe(*self._waiting.popleft())

    def _charge(self, plan: VerifyPlan, accepted: tuple[int, ...]) -> None:
        """Regret as the controller defines it, counted here again and in floating point."""
        if plan.draft.budget is None:
            return
        payers = plan.draft.budget.payers
        extra = (plan.cost_ns - plan.draft.budget.base_ns) / plan.draft.budget.plain_ns
        for idx in payers:
            if self._is_own:
                charge = extra - accepted[idx]
            else:
                charge = (extra * len(accepted) - sum(accepted[payer] for payer in payers)) / len(payers)
            request_id = plan.draft.request_ids[idx]
            self._charged[request_id] = self._charged.get(request_id, 0.0) + charge
            self.worst_charged = max(self.worst_charged, self._charged[request_id])

    def finish(self, running: Running) -> None:
        self.controller.finish(str(running.idx), (), (_key(running.idx),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """over_plain and over_best: speed against no speculation and against the best fixed width in hindsight
    (which may be none); best_width: that width; regret: the most any request was ever charged, plain steps;
    own_regret: by its own time and tokens."""

    trace: str
    batch_size: int
    num_tokens: int
    over_plain: float
    over_best: float
    best_width: int
    best_over_plain: float
    regret: float
    own_regret: float
    kinds: dict[str, int]
    width_steps: dict[int, int]


def judge(
    trace: Trace,
    table: CostTable,
    batch_size: int,
    settings: ControllerSettings | None = None,
    *,
    lag: int = 0,
) -> Verdict:
    """The controller against every fixed width on one trace."""
    settings = settings or ControllerSettings(shape=VerifyShape.EQUAL)
    controlled = Controlled(table, settings, lag=lag)
    ours = run_policy(trace, table, controlled, batch_size)
    fixed = [
        run_policy(trace, table, FixedWidth(table, width), batch_size).speed
        for width in range(table.block + 1)
    ]
    best = max(range(len(fixed)), key=fixed.__getitem__)
    return Verdict(
        trace=trace.name,
        batch_size=batch_size,
        num_tokens=trace.num_tokens,
        over_plain=ours.speed,
        over_best=ours.speed / fixed[best],
        best_width=best,
        best_over_plain=fixed[best],
        regret=controlled.worst_charged,
        own_regret=ours.worst_own_regret,
        kinds=controlled.kinds,
        width_steps=controlled.width_steps,
    )


def _key(idx: int) -> bytes:
    return idx.to_bytes(16, "little")

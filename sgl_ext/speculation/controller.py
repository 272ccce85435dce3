"""The controller: for every step, whether to draft and how many draft tokens of each request to verify.

It sees costs from the table, the draft's confidence and the accepted counts, and nothing else: no clock, no
randomness, no order of a hash. So ranks that make the same calls get the same plans, bit by bit.
docs/speculation.md says what is guaranteed; regret.py has the proof.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sgl_ext.speculation.acceptance import DEFAULT_CHANCE, AcceptanceEstimate
from sgl_ext.speculation.confidence import ConfidenceTable, confidence_level
from sgl_ext.speculation.conversation_memory import ConversationMemory
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.fixed_point import ONE, PLAIN, ceil_div, survival_of
from sgl_ext.speculation.prediction_score import PredictionScore
from sgl_ext.speculation.regret import RegretAccount
from sgl_ext.speculation.request_option import SpecOption
from sgl_ext.speculation.request_state import REQUEST_LIMIT, RequestState
from sgl_ext.speculation.step_plan import Budget, DraftPlan, StepKind, VerifyPlan
from sgl_ext.speculation.width_choice import (
    Choice,
    best_gain,
    best_rate,
    equal_width_choices,
    ragged_choices,
)


class VerifyShape(enum.StrEnum):
    """EQUAL: one width for the batch (static graphs), smaller ones cost the same.
    RAGGED: a length for each."""

    EQUAL = "equal"
    RAGGED = "ragged"


class RegretShare(enum.StrEnum):
    """Who is charged for a step of several requests. MEAN: each request the batch's mean, so that the batch
    does what is best for all of it. OWN: each request its own time and tokens, so that none is ever slowed
    down for others."""

    MEAN = "mean"
    OWN = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    shape: VerifyShape = VerifyShape.EQUAL
    share: RegretShare = RegretShare.MEAN
    max_conversations: int = 4096


_SERVER_LIMIT = 4 * PLAIN
_SERVER_MOST = 64 * PLAIN
_SERVER_INCOME_SHIFT = 7  # 1/128: with the limit, 0.97 of no speculation from 174 plain steps on
_POPULATION_WEIGHT = 2
_POPULATION_MEMORY_SHIFT = 9
# Until so many trials of the server, a request alone that has gained nothing yet takes one token at a time:
# wider steps on a guess use up the regret that telling a small gain from none needs.
_FIRST_TRIALS = 64 * ONE
# Hope ends where half a plain step of regret is left: that is for trials later on.
_HOPE_LEFT = PLAIN // 2
# Drafting goes on until plain is better by 1/128: figures that waver around break-even lose more by stopping.
_STAY_SHIFT = 7


class SpeculationController:
    """One for each rank. Calls come in the same order on all ranks; a step is planned by plan_draft and
    plan_verify and ends with observe, and may be planned before earlier ones are observed (overlapped
    scheduling)."""

    def __init__(self, table: CostTable, settings: ControllerSettings) -> None:
        self._table = table
        self._settings = settings
        self._requests: dict[str, RequestState] = {}
        self._population = AcceptanceEstimate(
            (DEFAULT_CHANCE,) * table.block, weight=_POPULATION_WEIGHT, memory_shift=_POPULATION_MEMORY_SHIFT
        )
        # A request's own history against the figures of all; a lead below 1/64 is noise of 256 trials.
        self._own_score = PredictionScore(6)
        self._confidence = ConfidenceTable(table.block, DEFAULT_CHANCE)
        self._conversations = ConversationMemory(settings.max_conversations)
        self._server = RegretAccount(
            limit=_SERVER_LIMIT, most=_SERVER_MOST, income_shift=_SERVER_INCOME_SHIFT
        )

    def admit(self, request_id: str, option: SpecOption, prompt_keys: Sequence[bytes] = ()) -> None:
        """A request starts. prompt_keys: conversation_memory.page_keys of its prompt, cached or not."""
        assert request_id not in self._requests, f"{request_id} is already running"
        lesson = self._conversations.find(prompt_keys)
        self._requests[request_id] = RequestState(option, self._population.chances(), lesson)

    def finish(
        self, request_id: str, prompt_keys: Sequence[bytes] = (), all_keys: Sequence[bytes] = ()
    ) -> None:
        """A request ended or was aborted. all_keys: of prompt and answer;
        the last page of each is remembered."""
        state = self._requests.pop(request_id)
        if state.is_auto:
            self._conversations.keep((*prompt_keys[-1:], *all_keys[-1:]), state.lesson())

    def plan_draft(self, request_ids: Sequence[str]) -> DraftPlan:
        """Whether the next step of these requests drafts at all."""
        batch = len(request_ids)
        ids = tuple(request_ids)
        states = [self._requests[request_id] for request_id in ids]
        plain_ns = self._table.plain_ns(min(batch, self._table.max_batch))
        plain = Choice(widths=(0,) * batch, tokens=batch * ONE, cost_ns=plain_ns)

        def plan(kind: StepKind, choice: Choice = plain, budget: Budget | None = None) -> DraftPlan:
            return DraftPlan(request_ids=ids, kind=kind, choice=choice, plain=plain, budget=budget)

        if batch > self._table.max_batch:
            return plan(StepKind.BATCH_TOO_LARGE)
        if not any(state.widest(self._table.block) for state in states):
            return plan(StepKind.OFF)
        choices = list(self._choices(states, [survival_of(self._chances(state)) for state in states]))
        budget = self._budget(states, plain_ns, choices[0])
        is_forced = self._floor(states) > 0
        start = choices[0] if is_forced else plain
        affordable = [choice for choice in choices if choice.cost_ns <= budget.max_cost_ns]
        best = best_rate(affordable, start) if is_forced else self._best(states, affordable, plain, budget)
        if best.total > (start.total if is_forced else 0):
            self._note_drafting(states)
            return plan(StepKind.PAYS, best, budget)
        if is_forced:
            return plan(StepKind.FIXED, start, budget)
        would_pay = best_rate(choices, start).total > 0
        if not would_pay:
            self._note_stopping(states, batch)
        probe = self._probe(states, budget)
        if probe is not None:
            return plan(StepKind.PROBE, probe, budget)
        for state in states:
            state.probe.plain_step()
        if would_pay:
            return plan(StepKind.SERVER_REGRET if budget.server_is_short else StepKind.REGRET)
        return plan(StepKind.NOT_PAYING)

    def plan_verify(
        self, draft: DraftPlan, confidence: Sequence[Sequence[int] | None] | None = None
    ) -> VerifyPlan:
        """Widths of the step, now that its draft is known. Reserves its worst case until observe().

        confidence: by request and position, 0 to ONE, the same on every rank; None where the engine has
        none, and for each request that samples: a width that depends on the drawn draft would bend its
        distribution.
        """
        states = [self._requests[request_id] for request_id in draft.request_ids]
        levels = None
        choice = draft.choice
        trusted = False
        if draft.drafts and confidence is not None:
            levels = tuple(
                None if row is None else tuple(confidence_level(value) for value in row) for row in confidence
            )
            trusted = self._confidence.is_useful and draft.kind is not StepKind.PROBE
        if trusted:
            assert levels is not None and draft.budget is not None
            choice = self._choose_known(states, levels, draft)
        worst, request_worst = self._worst(choice, draft.budget)
        if draft.budget is not None:
            self._server.reserve(worst)
            for idx in draft.budget.payers:
                states[idx].account.reserve(request_worst)
        return VerifyPlan(
            draft=draft,
            widths=choice.widths,
            graph_width=max(choice.widths),
            cost_ns=choice.cost_ns,
            trusted=trusted,
            levels=levels,
            worst=worst,
            request_worst=request_worst,
        )

    def observe(self, plan: VerifyPlan, accepted: Sequence[int]) -> None:
        """The step's result: accepted draft tokens by request, at most its width. Requests that ended
        meanwhile are passed over."""
        others = self._population.chances()
        ids = plan.draft.request_ids
        states = [self._requests.get(request_id) for request_id in ids]
        for idx, (state, width, count) in enumerate(zip(states, plan.widths, accepted, strict=True)):
            assert 0 <= count <= width, f"{ids[idx]} accepted {count} of {width}"
            if state is None or not plan.draft.drafts:
                continue
            own, history = state.estimate.chances(), self._chances(state)
            for position in range(min(count + 1, width)):
                self._own_score.observe(position < count, champion=others[position], challenger=own[position])
            state.observe(
                width,
                count,
                levels=None if plan.levels is None else plan.levels[idx],
                confidence=self._confidence,
                trusted=plan.trusted,
                history=history,
            )
            if state.is_auto:
                self._population.observe(width, count)
                if idx == 0 and count == width and not plan.trusted:  # once a step, whatever the batch
                    self._population.drift(width)
            if plan.draft.kind is StepKind.PROBE and width:
                state.probed(count, plan.request_worst)
        self._settle(plan, states, accepted)

    def _chances(self, state: RequestState) -> tuple[int, ...]:
        return state.chances(self._population.chances(), self._own_score.challenger_leads)

    def _settle(
        self, plan: VerifyPlan, states: Sequence[RequestState | None], accepted: Sequence[int]
    ) -> None:
        batch = len(states)
        budget = plan.draft.budget
        total = sum(accepted)
        self._server.settle(plan.worst, plan.worst - total * PLAIN // batch)
        self._server.earn((batch + total) * PLAIN // batch)
        if budget is None:
            return
        share = sum(accepted[idx] for idx in budget.payers) * PLAIN // max(1, len(budget.payers))
        is_own = self._settings.share is RegretShare.OWN
        for idx in budget.payers:
            state = states[idx]
            if state is not None:
                credit = accepted[idx] * PLAIN if is_own else share
                state.account.settle(plan.request_worst, plan.request_worst - credit)
                state.count_gain(plan.request_worst - credit)

    def _worst(self, choice: Choice, budget: Budget | None) -> tuple[int, int]:
        """The step's worst case, of the server and of each payer: nothing accepted."""
        if budget is None:
            return 0, 0
        extra = (choice.cost_ns - budget.base_ns) * PLAIN
        batch = len(choice.widths)
        if self._settings.share is RegretShare.OWN:
            share = ceil_div(extra, budget.plain_ns)
        else:
            share = ceil_div(extra * batch, budget.plain_ns * max(1, len(budget.payers)))
        return ceil_div(extra, budget.plain_ns), share

    def _budget(self, states: Sequence[RequestState], plain_ns: int, first: Choice) -> Budget:
        """Who can pay for a step, and how much. A request that cannot pay its share of the smallest step
        rides along: the others answer for it, and its tokens count for the choice (MEAN only)."""
        batch = len(states)
        base_ns = first.cost_ns if first.total else plain_ns
        payers = tuple(idx for idx, state in enumerate(states) if state.is_auto)
        smallest = self._smallest_step_ns(batch) - plain_ns
        while self._settings.share is RegretShare.MEAN and payers:
            need = ceil_div(smallest * batch * PLAIN, plain_ns * len(payers))
            able = tuple(idx for idx in payers if states[idx].account.left >= need)
            if able == payers:
                break
            payers = able
        least = min((states[idx].account.left for idx in payers), default=0)
        of_requests = least * plain_ns // PLAIN
        if self._settings.share is RegretShare.MEAN:
            of_requests = least * plain_ns * len(payers) // (batch * PLAIN)
        of_server = self._server.left * plain_ns // PLAIN
        return Budget(
            payers=payers,
            base_ns=base_ns,
            plain_ns=plain_ns,
            max_cost_ns=base_ns + max(0, min(of_requests, of_server)),
            server_is_short=of_server < of_requests,
        )

    def _smallest_step_ns(self, batch: int) -> int:
        if self._settings.shape is VerifyShape.RAGGED:
            return self._table.ragged_step_ns(batch, 1)
        return self._table.step_ns(batch, 1)

    def _floor(self, states: Sequence[RequestState]) -> int:
        return max((0 if state.is_auto else state.option.width) for state in states)

    def _choices(
        self, states: Sequence[RequestState], survivals: Sequence[tuple[int, ...]]
    ) -> Iterable[Choice]:
        caps = [state.widest(self._table.block) for state in states]
        if self._settings.shape is VerifyShape.RAGGED:
            floors = [0 if state.is_auto else state.option.width for state in states]
            return ragged_choices(self._table, survivals, caps, floors)
        return equal_width_choices(self._table, survivals, caps, floor=self._floor(states))

    def _choose_known(
        self, states: Sequence[RequestState], levels: Sequence[tuple[int, ...] | None], draft: DraftPlan
    ) -> Choice:
        assert draft.budget is not None
        survivals = [
            survival_of(
                self._chances(state) if row is None else self._confidence.chances(row, state.factor.value())
            )
            for state, row in zip(states, levels, strict=True)
        ]
        rate = draft.choice if draft.choice.beats(draft.plain) else draft.plain
        affordable = [
            choice
            for choice in self._choices(states, survivals)
            if choice.cost_ns <= draft.budget.max_cost_ns
        ]
        return best_gain(affordable, rate)

    def _best(
        self, states: Sequence[RequestState], affordable: Sequence[Choice], plain: Choice, budget: Budget
    ) -> Choice:
        """The choice with the best rate, or plain; where nothing pays, one token of each while it may."""
        payers = [states[idx] for idx in budget.payers]
        stop = plain
        if all(state.drafts for state in payers):
            stop = replace(plain, tokens=plain.tokens - (plain.tokens >> _STAY_SHIFT))
        best = stop
        is_alone = len(states) == 1 and all(state.account.left <= REQUEST_LIMIT for state in payers)
        if is_alone and self._population.weights()[0] < _FIRST_TRIALS:
            best = best_rate((choice for choice in affordable if choice.total == 1), stop)
        if best is stop:
            best = best_rate(affordable, stop)
        trial = self._trial(states)
        if best is stop and trial.cost_ns <= budget.max_cost_ns and trial.beats(plain):
            return trial
        return plain if best is stop else best

    def _trial(self, states: Sequence[RequestState]) -> Choice:
        """One token of each request, with the tokens that it may well bring."""
        widths = tuple(min(1, state.widest(self._table.block)) for state in states)
        batch = len(states)
        hopes = sum(self._hope(state) for state, width in zip(states, widths, strict=True) if width)
        if self._settings.shape is VerifyShape.RAGGED:
            cost_ns = self._table.ragged_step_ns(batch, sum(widths))
        else:
            cost_ns = self._table.step_ns(batch, 1)
        return Choice(widths=widths, tokens=batch * ONE + hopes, cost_ns=cost_ns)

    def _hope(self, state: RequestState) -> int:
        """The chance of its first token; more, if everybody's few trials are all that speaks against it."""
        if self._own_score.challenger_leads or not state.is_auto or state.account.left <= _HOPE_LEFT:
            return self._chances(state)[0]
        return self._population.hope()

    def _probe(self, states: Sequence[RequestState], budget: Budget) -> Choice | None:
        """One token of each request, if the payers are due on average and can pay for it."""
        dueness = sum(states[idx].probe.dueness() for idx in budget.payers)
        if not budget.payers or dueness < 256 * len(budget.payers):
            return None
        probe = self._trial(states)
        if probe.cost_ns > budget.max_cost_ns:
            return None
        for state in states:
            state.probe.restart()
        return probe

    def _note_drafting(self, states: Sequence[RequestState]) -> None:
        for state in states:
            state.start_drafting()

    def _note_stopping(self, states: Sequence[RequestState], batch: int) -> None:
        plain_ns = self._table.plain_ns(batch)
        break_even = min(ONE, ((self._table.step_ns(batch, 1) - plain_ns) << 16) // plain_ns)
        for state in states:
            if state.drafts:
                state.stop_drafting(break_even)

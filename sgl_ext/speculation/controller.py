"""The controller: for every step, whether to draft and how many draft tokens of each request to verify.

It sees costs from the table, the draft's confidence and the accepted counts, and nothing else: no clock, no
randomness, no order of a hash. So ranks that make the same calls get the same plans, bit by bit.
docs/speculation.md says what is guaranteed; regret.py has the proof.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sgl_ext.speculation.acceptance import DEFAULT_CHANCE, AcceptanceEstimate
from sgl_ext.speculation.confidence import ConfidenceTable, confidence_level
from sgl_ext.speculation.conversation_memory import ConversationMemory
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.count_run import count_run
from sgl_ext.speculation.fixed_point import ONE, PLAIN, ceil_div, survival_of
from sgl_ext.speculation.prediction_score import PredictionScore
from sgl_ext.speculation.regret import RegretAccount
from sgl_ext.speculation.request_option import SpecOption
from sgl_ext.speculation.request_state import REQUEST_LIMIT, RequestState
from sgl_ext.speculation.step_plan import Budget, DraftPlan, StepKind, VerifyPlan
from sgl_ext.speculation.width_choice import Choice, Choices, EqualChoices, RaggedChoices, Survivals


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchCosts:
    """What the table says about a batch, looked up once. plain: a step without a draft; stop: what drafting
    must beat while it goes on; ragged: CostTable.ragged_costs, None with equal widths; one_ns: the smallest
    step that drafts."""

    plain: Choice
    stop: Choice
    ragged: tuple[int, ...] | None
    one_ns: int


class SpeculationController:
    """One for each rank. Calls come in the same order on all ranks; a step is planned by plan_draft and
    plan_verify and ends with observe, and may be planned before earlier ones are observed (overlapped
    scheduling)."""

    def __init__(self, table: CostTable, settings: ControllerSettings) -> None:
        self._table = table
        self._settings = settings
        self._requests: dict[str, RequestState] = {}
        self._costs: dict[int, _BatchCosts] = {}  # by batch
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
        ids = tuple(request_ids)  # a tuple stays itself
        requests = self._requests
        states = [requests[request_id] for request_id in ids]
        costs = self._batch_costs(batch)
        plain = costs.plain

        def plan(kind: StepKind, choice: Choice = plain, budget: Budget | None = None) -> DraftPlan:
            return DraftPlan(request_ids=ids, kind=kind, choice=choice, plain=plain, budget=budget)

        if batch > self._table.max_batch:
            return plan(StepKind.BATCH_TOO_LARGE)
        if not any(state.cap for state in states):
            return plan(StepKind.OFF)
        choices = self._choices(states, self._survivals(states), costs)
        budget = self._budget(states, costs, choices)
        is_forced = any(state.floor for state in states)
        start = choices.choice(0) if is_forced else plain
        if is_forced:
            best = choices.best_rate(start, max_cost_ns=budget.max_cost_ns)
        else:
            best = self._best(states, choices, costs, budget)
        if best.total > (start.total if is_forced else 0):
            self._note_drafting(states)
            return plan(StepKind.PAYS, best, budget)
        if is_forced:
            return plan(StepKind.FIXED, start, budget)
        would_pay = choices.best_rate(start).total > 0
        if not would_pay:
            self._note_stopping(states, batch)
        probe = self._probe(states, costs, budget)
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
        requests = self._requests
        states = [requests.get(request_id) for request_id in plan.draft.request_ids]
        self._learn(plan, states, accepted)
        self._settle(plan, states, accepted)

    def _learn(
        self, plan: VerifyPlan, states: Sequence[RequestState | None], accepted: Sequence[int]
    ) -> None:
        draft = plan.draft
        drafts, is_probe = draft.drafts, draft.kind is StepKind.PROBE
        population, score = self._population, self._own_score
        others = population.chances()
        for idx, (state, width, count) in enumerate(zip(states, plan.widths, accepted, strict=True)):
            assert 0 <= count <= width, f"{draft.request_ids[idx]} accepted {count} of {width}"
            if state is None or not drafts:
                continue
            estimate = state.estimate
            levels = None if plan.levels is None else plan.levels[idx]
            if levels is None:
                chance = 0  # of the token that was not accepted, by what has predicted better
                if count < width:
                    chance = (estimate if score.challenger_leads else population).chance(count)
                has_turned = state.turns(width, count, chance)
                if state.is_auto and not has_turned:
                    count_run(estimate, population, score, width=width, accepted=count, others=others)
                else:
                    own = estimate.first_chances(count + 1 if count < width else width)
                    score.observe_run(count, champions=others, challengers=own)
                    if has_turned:
                        state.forget()
                    estimate.observe(width, count)
                    if state.is_auto:
                        population.observe(width, count)
                if count == width:
                    estimate.drift(width)
            else:
                own = estimate.first_chances(count + 1 if count < width else width)
                history = self._chances(state)
                score.observe_run(count, champions=others, challengers=own)
                state.observe(
                    width,
                    count,
                    levels=levels,
                    confidence=self._confidence,
                    trusted=plan.trusted,
                    history=history,
                )
                if state.is_auto:
                    population.observe(width, count)
            if state.is_auto and idx == 0 and count == width and not plan.trusted:
                population.drift(width)  # once a step, whatever the batch
            if is_probe and width:
                state.probed(count, plan.request_worst)

    def _chances(self, state: RequestState) -> tuple[int, ...]:
        return state.chances(self._population.chances(), self._own_score.challenger_leads)

    def _first_chance(self, state: RequestState) -> int:
        return (state.estimate if self._own_score.challenger_leads else self._population).chance(0)

    def _survivals(self, states: Sequence[RequestState]) -> Survivals:
        """survival_of(_chances) of each."""
        if self._own_score.challenger_leads:
            return [state.estimate.survival() for state in states]
        return (self._population.survival(),) * len(states)

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

    def _budget(self, states: Sequence[RequestState], costs: _BatchCosts, choices: Choices) -> Budget:
        """Who can pay for a step, and how much. A request that cannot pay its share of the smallest step
        rides along: the others answer for it, and its tokens count for the choice (MEAN only)."""
        batch = len(states)
        plain_ns = costs.plain.cost_ns
        base_ns = choices.costs[0] if choices.totals[0] else plain_ns
        lefts = [state.account.left for state in states]
        payers = tuple([idx for idx, state in enumerate(states) if state.is_auto])
        smallest = (costs.one_ns - plain_ns) * batch * PLAIN
        least = min([lefts[idx] for idx in payers], default=0)
        is_mean = self._settings.share is RegretShare.MEAN
        while is_mean and payers:
            need = ceil_div(smallest, plain_ns * len(payers))
            if least >= need:
                break
            payers = tuple([idx for idx in payers if lefts[idx] >= need])
            least = min([lefts[idx] for idx in payers], default=0)
        of_requests = least * plain_ns // PLAIN
        if is_mean:
            of_requests = least * plain_ns * len(payers) // (batch * PLAIN)
        of_server = self._server.left * plain_ns // PLAIN
        return Budget(
            payers=payers,
            base_ns=base_ns,
            plain_ns=plain_ns,
            max_cost_ns=base_ns + max(0, min(of_requests, of_server)),
            server_is_short=of_server < of_requests,
        )

    def _batch_costs(self, batch: int) -> _BatchCosts:
        costs = self._costs.get(batch)
        if costs is None:
            costs = self._costs[batch] = self._look_up(batch)
        return costs

    def _look_up(self, batch: int) -> _BatchCosts:
        table = self._table
        known = min(batch, table.max_batch)
        plain = Choice(widths=(0,) * batch, tokens=batch * ONE, cost_ns=table.plain_ns(known))
        is_ragged = self._settings.shape is VerifyShape.RAGGED
        return _BatchCosts(
            plain=plain,
            stop=replace(plain, tokens=plain.tokens - (plain.tokens >> _STAY_SHIFT)),
            ragged=table.ragged_costs(known) if is_ragged else None,
            one_ns=table.ragged_step_ns(known, 1) if is_ragged else table.step_ns(known, 1),
        )

    def _choices(self, states: Sequence[RequestState], survivals: Survivals, costs: _BatchCosts) -> Choices:
        caps = [state.cap for state in states]
        floors = [state.floor for state in states]
        if costs.ragged is not None:
            return RaggedChoices(costs.ragged, survivals, caps, floors)
        return EqualChoices(self._table, survivals, caps, max(floors))

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
        choices = self._choices(states, survivals, self._batch_costs(len(states)))
        return choices.best_gain(rate, max_cost_ns=draft.budget.max_cost_ns)

    def _best(
        self, states: Sequence[RequestState], choices: Choices, costs: _BatchCosts, budget: Budget
    ) -> Choice:
        """The choice with the best rate, or plain; where nothing pays, one token of each while it may."""
        plain = costs.plain
        payers = [states[idx] for idx in budget.payers]
        stop = costs.stop if all(state.drafts for state in payers) else plain
        best = stop
        is_alone = len(states) == 1 and all(state.account.left <= REQUEST_LIMIT for state in payers)
        if is_alone and self._population.weight(0) < _FIRST_TRIALS:
            best = choices.best_rate(stop, max_cost_ns=budget.max_cost_ns, total=1)
        if best is stop:
            best = choices.best_rate(stop, max_cost_ns=budget.max_cost_ns)
        if best is not stop:
            return best
        trial = self._trial(states, costs)
        return trial if trial.cost_ns <= budget.max_cost_ns and trial.beats(plain) else plain

    def _trial(self, states: Sequence[RequestState], costs: _BatchCosts) -> Choice:
        """One token of each request, with the tokens that it may well bring."""
        widths = tuple([1 if state.cap else 0 for state in states])
        hopes = sum([self._hope(state) for state, width in zip(states, widths, strict=True) if width])
        cost_ns = costs.one_ns if costs.ragged is None else costs.ragged[sum(widths)]
        return Choice(widths=widths, tokens=len(states) * ONE + hopes, cost_ns=cost_ns)

    def _hope(self, state: RequestState) -> int:
        """The chance of its first token; more, if everybody's few trials are all that speaks against it."""
        if self._own_score.challenger_leads or not state.is_auto or state.account.left <= _HOPE_LEFT:
            return self._first_chance(state)
        return self._population.hope()

    def _probe(self, states: Sequence[RequestState], costs: _BatchCosts, budget: Budget) -> Choice | None:
        """One token of each request, if the payers are due on average and can pay for it."""
        dueness = sum(states[idx].probe.dueness() for idx in budget.payers)
        if not budget.payers or dueness < 256 * len(budget.payers):
            return None
        probe = self._trial(states, costs)
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

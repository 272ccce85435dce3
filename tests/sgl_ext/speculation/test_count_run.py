"""The one-pass counts and the one-pass choice are what their plain forms say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_ext.speculation.acceptance import AcceptanceEstimate
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.count_run import count_run
from sgl_ext.speculation.fixed_point import ONE, survival_of
from sgl_ext.speculation.prediction_score import PredictionScore
from sgl_ext.speculation.turn_alarm import TurnAlarm
from sgl_ext.speculation.width_choice import Choice, EqualChoices, RaggedChoices

BLOCK = 5
CHANCES = st.lists(st.integers(0, ONE), min_size=BLOCK, max_size=BLOCK)


@given(CHANCES, CHANCES, st.lists(st.tuples(st.integers(0, BLOCK), st.integers(0, BLOCK)), max_size=60))
@settings(max_examples=150, deadline=None)
def test_one_pass_counts_as_each_method_does(
    own: list[int], all_: list[int], steps: list[tuple[int, int]]
) -> None:
    def fresh() -> tuple[AcceptanceEstimate, AcceptanceEstimate, PredictionScore]:
        return (
            AcceptanceEstimate(tuple(own), weight=2, memory_shift=7),
            AcceptanceEstimate(tuple(all_), weight=2, memory_shift=9),
            PredictionScore(6),
        )

    fast, plain = fresh(), fresh()
    for width, run in steps:
        accepted = min(width, run)
        others = fast[1].chances()
        count_run(*fast, width=width, accepted=accepted, others=others)
        estimate, everybody, score = plain
        own_chances = estimate.chances()
        for position in range(min(accepted + 1, width)):
            score.observe(position < accepted, champion=others[position], challenger=own_chances[position])
        estimate.observe(width, accepted)
        everybody.observe(width, accepted)
        for one, other in zip(fast[:2], plain[:2], strict=True):
            assert (one.trials, one.successes) == (other.trials, other.successes)
            assert one.survival() == survival_of(one.chances())
        found = [(one.champion, one.challenger, one.num_trials) for one in (fast[2], plain[2])]
        assert found[0] == found[1]


@given(st.lists(st.tuples(CHANCES, st.integers(0, BLOCK)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_accepted_tokens_lower_the_alarm_as_one_by_one(steps: list[tuple[list[int], int]]) -> None:
    fast, plain = TurnAlarm(), TurnAlarm()
    for chances, accepted in steps:
        fast.observe_accepted(accepted)
        rings = False
        if accepted < BLOCK:
            rings = fast.observe(chances[accepted], False)
        seen = [plain.observe(chances[idx], idx < accepted) for idx in range(min(accepted + 1, BLOCK))]
        assert any(seen) is rings


@st.composite
def batches(draw: st.DrawFn) -> tuple[CostTable, list[tuple[int, ...]], list[int], list[int]]:
    batch = draw(st.integers(1, 17))
    # Few values, so that many choices are equally good; a level of 0 makes whole stretches free.
    level = st.sampled_from((0, 0, 1, 3, 1000, 333_333))
    steps = draw(st.lists(level, min_size=BLOCK, max_size=BLOCK))
    row = [1_000_000]
    for one in steps:
        row.append(row[-1] + one)
    table = CostTable(
        batches=(batch,), verify_ns=(tuple(row),), draft_ns=(draw(st.sampled_from((0, 250_000))),)
    )
    chance = st.sampled_from((0, ONE // 3, ONE // 2, ONE - 1, ONE))
    survivals = [survival_of(tuple(draw(chance) for _ in range(BLOCK))) for _ in range(batch)]
    floors = draw(st.sampled_from(([0] * batch, [idx % 3 for idx in range(batch)])))
    caps = [floor if floor else (0 if idx % 5 == 4 else BLOCK) for idx, floor in enumerate(floors)]
    return table, survivals, caps, floors


@given(batches(), st.integers(0, 2_000_000))
@settings(max_examples=200, deadline=None)
def test_the_best_is_the_first_of_the_best_that_can_be_paid(
    case: tuple[CostTable, list[tuple[int, ...]], list[int], list[int]], budget: int
) -> None:
    table, survivals, caps, floors = case
    batch = len(caps)
    limit = table.step_ns(batch, 0) + budget
    start = Choice(widths=(0,) * batch, tokens=batch * ONE, cost_ns=table.plain_ns(batch))
    ragged = list(list_ragged(table, survivals, caps, floors))
    floor = max(floors)
    equal = [
        spell(table.step_ns(batch, width), [min(width, cap) for cap in caps], survivals)
        for width in range(floor, BLOCK + 1)
    ]
    for choices, plain in (
        (RaggedChoices(table.ragged_costs(batch), survivals, caps, floors), ragged),
        (EqualChoices(table, survivals, caps, floor), equal),
    ):
        assert [choices.choice(idx) for idx in range(len(plain))] == plain
        assert list(choices.totals) == [one.total for one in plain]
        affordable = [one for one in plain if one.cost_ns <= limit]
        assert choices.best_rate(start, max_cost_ns=limit) == first_best(affordable, start)
        assert choices.best_rate(start) == first_best(plain, start)
        ones = [one for one in affordable if one.total == 1]
        assert choices.best_rate(start, max_cost_ns=limit, total=1) == first_best(ones, start)
        if affordable:
            gains = [one.tokens * start.cost_ns - start.tokens * one.cost_ns for one in affordable]
            assert choices.best_gain(start, max_cost_ns=limit) == affordable[gains.index(max(gains))]


def list_ragged(
    table: CostTable, survivals: list[tuple[int, ...]], caps: list[int], floors: list[int]
) -> list[Choice]:
    batch = len(caps)
    wanted = sorted(
        (-survivals[idx][position], idx, position)
        for idx in range(batch)
        for position in range(floors[idx], caps[idx])
    )
    widths = list(floors)
    found = [spell(table.ragged_step_ns(batch, sum(widths)), widths, survivals)]
    for _, idx, position in wanted:
        widths[idx] = position + 1
        found.append(spell(table.ragged_step_ns(batch, sum(widths)), widths, survivals))
    return found


def spell(cost_ns: int, widths: list[int], survivals: list[tuple[int, ...]]) -> Choice:
    tokens = sum(ONE + sum(survival[:width]) for survival, width in zip(survivals, widths, strict=True))
    return Choice(widths=tuple(widths), tokens=tokens, cost_ns=cost_ns)


def first_best(choices: list[Choice], start: Choice) -> Choice:
    best = start
    for one in choices:
        if one.beats(best):
            best = one
    return best

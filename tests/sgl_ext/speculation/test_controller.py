"""What the controller decides, case by case, and that every rank decides the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sgl_ext.speculation import published_costs
from sgl_ext.speculation.acceptance import AcceptanceEstimate
from sgl_ext.speculation.controller import ControllerSettings, SpeculationController, VerifyShape
from sgl_ext.speculation.fixed_point import ONE, PLAIN
from sgl_ext.speculation.request_option import AUTO, OFF, SpecMode, SpecOption
from sgl_ext.speculation.step_plan import StepKind, VerifyPlan

TABLE = published_costs.tp4_tuned()
RAGGED = ControllerSettings(shape=VerifyShape.RAGGED)


def controller_with(
    *options: SpecOption, settings: ControllerSettings | None = None
) -> SpeculationController:
    controller = SpeculationController(TABLE, settings or ControllerSettings())
    for idx, option in enumerate(options):
        controller.admit(str(idx), option)
    return controller


def run(controller: SpeculationController, ids: list[str], runs: list[int], steps: int) -> list[VerifyPlan]:
    """Steps in which request i would always have runs[i] tokens right."""
    plans = []
    for _ in range(steps):
        plan = controller.plan_verify(controller.plan_draft(ids))
        controller.observe(plan, [min(pair) for pair in zip(plan.widths, runs, strict=True)])
        plans.append(plan)
    return plans


def test_a_good_draft_is_verified_whole() -> None:
    plans = run(controller_with(AUTO), ["0"], [5], 30)
    assert [plan.widths for plan in plans[10:]] == [(5,)] * 20


def test_a_useless_draft_is_given_up_within_its_regret_and_tried_ever_more_rarely() -> None:
    plans = run(controller_with(AUTO), ["0"], [0], 2000)
    drafted = [step for step, plan in enumerate(plans) if plan.draft.drafts]
    assert len([step for step in drafted if step < 60]) <= 24  # 4 plain steps pay for no more
    assert len([step for step in drafted if step >= 1000]) <= 2
    assert plans[-1].cost_ns == TABLE.plain_ns(1)  # without a draft: nothing is paid


def test_a_draft_that_becomes_good_is_found_again() -> None:
    controller = controller_with(AUTO)
    run(controller, ["0"], [0], 60)
    plans = run(controller, ["0"], [5], 200)
    first = next(step for step, plan in enumerate(plans) if plan.widths == (5,))
    assert first < 80


def test_a_request_alone_begins_with_one_token_and_a_batch_with_more() -> None:
    assert [plan.widths for plan in run(controller_with(AUTO), ["0"], [0], 5)] == [(1,)] * 5
    assert controller_with(AUTO, AUTO).plan_draft(["0", "1"]).choice.widths > (1, 1)
    taught = controller_with(AUTO, AUTO)
    run(taught, ["1"], [5], 80)
    assert taught.plan_draft(["0"]).choice.widths == (5,)


def test_where_nothing_pays_one_token_is_hoped_for_while_two_trials_more_would_pay() -> None:
    """With 2 trials at 0.7 and a step at 1.165 plain ones, drafting stops paying after 7 failures."""
    plans = run(controller_with(AUTO), ["0"], [0], 60)
    first_plain = next(step for step, plan in enumerate(plans) if not plan.draft.drafts)
    assert 12 <= first_plain <= 21


def test_hope_ends_with_half_a_plain_step_of_regret() -> None:
    controller = controller_with(AUTO)
    state = controller._requests["0"]
    state.account.reserve(PLAIN * 34 // 10)
    assert controller._hope(state) > controller._first_chance(state)
    state.account.reserve(PLAIN * 2 // 10)
    assert controller._hope(state) == controller._first_chance(state)


def test_drafting_goes_on_until_plain_is_better_by_a_128th() -> None:
    extra = ONE * TABLE.step_ns(1, 1) // TABLE.plain_ns(1) - ONE
    for shortfall, goes_on in ((ONE // 180, True), (ONE // 60, False)):
        controller = controller_with(AUTO)
        controller._population = AcceptanceEstimate((extra - shortfall,) * 5, weight=4000, memory_shift=9)
        assert not controller.plan_draft(["0"]).drafts
        controller._requests["0"].start_drafting()
        assert controller.plan_draft(["0"]).drafts is goes_on


def test_off_and_fixed_are_kept_to() -> None:
    plan = run(controller_with(OFF), ["0"], [5], 5)[-1]
    assert (plan.draft.kind, plan.widths) == (StepKind.OFF, (0,))
    fixed = SpecOption(mode=SpecMode.FIXED, width=3)
    assert [plan.widths for plan in run(controller_with(fixed), ["0"], [0], 50)] == [(3,)] * 50


def test_a_request_without_speculation_keeps_its_width_in_a_batch_that_drafts() -> None:
    for settings in (ControllerSettings(), RAGGED):
        plans = run(controller_with(AUTO, OFF, settings=settings), ["0", "1"], [5, 5], 30)
        assert plans[-1].widths[0] >= 1
        assert {plan.widths[1] for plan in plans} == {0}


def test_ragged_gives_the_good_request_more_and_the_cost_counts_rows() -> None:
    controller = controller_with(AUTO, AUTO, settings=RAGGED)
    plan = run(controller, ["0", "1"], [5, 0], 120)[-1]
    assert plan.widths[0] == 5
    assert plan.widths[1] <= 1
    assert plan.cost_ns == TABLE.ragged_step_ns(2, sum(plan.widths))


def test_a_batch_beyond_the_table_does_not_draft() -> None:
    controller = controller_with(*[AUTO] * 17)
    plan = run(controller, [str(idx) for idx in range(17)], [5] * 17, 1)[0]
    assert plan.draft.kind is StepKind.BATCH_TOO_LARGE


def test_a_conversation_goes_on_with_what_it_learned() -> None:
    controller = controller_with(AUTO)
    run(controller, ["0"], [0], 300)
    controller.finish("0", (), (b"turn one",))
    controller.admit("stranger", AUTO, (b"elsewhere",))
    run(controller, ["stranger"], [5], 300)
    controller.admit("next turn", AUTO, (b"turn one",))
    plans = run(controller, ["next turn"], [0], 60)
    assert sum(plan.draft.drafts for plan in plans) <= 2


def test_informative_confidence_cuts_the_width_and_its_opposite_works_as_well() -> None:
    for sense in (1, -1):
        controller = controller_with(AUTO)
        narrow: list[int] = []
        wide: list[int] = []
        for step in range(600):
            good = step % 2 == 0
            sure = ONE * 7 // 8 if good == (sense == 1) else ONE // 8
            plan = controller.plan_verify(controller.plan_draft(["0"]), [[sure] * 5])
            controller.observe(plan, [plan.widths[0] if good else 0])
            if step > 400:
                (wide if good else narrow).append(plan.widths[0])
        assert sum(wide) / len(wide) > 4
        assert sum(narrow) / len(narrow) < 1


def test_a_sampled_request_keeps_its_width_whatever_its_own_confidence_says() -> None:
    """In ragged verify the greedy neighbour follows its confidence meanwhile."""
    controller = controller_with(AUTO, AUTO, settings=RAGGED)
    sampled, greedy = set(), set()
    for step in range(600):
        good = step % 2 == 0
        sure = [ONE * 7 // 8 if good else ONE // 8] * 5
        plan = controller.plan_verify(controller.plan_draft(["0", "1"]), [None, sure])
        controller.observe(plan, [plan.widths[0], plan.widths[1] if good else 0])
        if step > 500:
            sampled.add(plan.widths[0])
            greedy.add(plan.widths[1])
    assert sampled == {5}
    assert {0, 5} <= greedy


REPLICA = """
import hashlib, random
from sgl_ext.speculation import published_costs
from sgl_ext.speculation.controller import ControllerSettings, SpeculationController, VerifyShape
from sgl_ext.speculation.request_option import AUTO
seen = hashlib.sha256()
for shape in VerifyShape:
    draw = random.Random(7)
    settings = ControllerSettings(shape=shape, max_conversations=8)
    controller = SpeculationController(published_costs.tp3(), settings)
    running, waiting, born = [], [], 0
    for step in range(400):
        while len(running) < 1 + step % 9:
            running.append(f"request-{born}")
            key = str(draw.randrange(12)).encode()
            controller.admit(running[-1], AUTO, (key,))
            born += 1
        confidence = [[draw.randrange(65536) for _ in range(5)] for _ in running]
        plan = controller.plan_verify(controller.plan_draft(running), confidence)
        seen.update(repr((plan.widths, plan.cost_ns, plan.draft.kind.value, plan.worst)).encode())
        waiting.append((plan, [draw.randrange(width + 1) for width in plan.widths]))
        if len(waiting) > 1:
            controller.observe(*waiting.pop(0))
        if step % 5 == 4:
            controller.finish(running.pop(0), (), (str(draw.randrange(12)).encode(),))
print(seen.hexdigest())
"""


def test_ranks_in_processes_of_their_own_decide_the_same_bits() -> None:
    repository = Path(__file__).parents[3]
    replicas = [
        subprocess.Popen(
            [sys.executable, "-c", REPLICA],
            cwd=repository,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "4711")
    ]
    digests = {replica.communicate(timeout=60)[0] for replica in replicas}
    assert [replica.returncode for replica in replicas] == [0, 0, 0]
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_the_controller_loads_neither_torch_nor_sglang() -> None:
    code = "import sys\nfrom sgl_ext.speculation import controller, simulate, metrics\n"
    code += "print([name for name in ('torch', 'sglang', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

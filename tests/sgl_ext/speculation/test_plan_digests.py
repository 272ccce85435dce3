"""Faster is not different: digests of every plan, first taken before the controller was made fast.

A change of the rules changes them. With SPARKCTL_WRITE_GOLDEN=1 this file writes them anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from sgl_ext.speculation import published_costs
from sgl_ext.speculation.controller import ControllerSettings, RegretShare, SpeculationController, VerifyShape
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.generate_traces import draw_trace
from sgl_ext.speculation.request_option import AUTO, OFF, SpecMode, SpecOption
from sgl_ext.speculation.simulate import Controlled, run_policy
from sgl_ext.speculation.step_plan import VerifyPlan
from sgl_ext.speculation.trace_recipes import ALL_RECIPES

GOLDEN = Path(__file__).with_name("plan_digests.json")
TABLES = {
    "tp4-profile": published_costs.tp4_profile(),
    "tp4-tuned": published_costs.tp4_tuned(),
    "tp3": published_costs.tp3(),
    "steep": published_costs.steep(),
}
RECIPES = {recipe.name: recipe for recipe in ALL_RECIPES}
TOKENS = int(os.environ.get("PLAN_DIGEST_TOKENS", "1000"))  # of a trace, all its requests together


class Digest:
    def __init__(self) -> None:
        self._seen = hashlib.sha256()
        self.num_steps = 0

    def add(self, plan: VerifyPlan) -> None:
        draft = plan.draft
        choices = [(one.widths, one.tokens, one.cost_ns, one.total) for one in (draft.choice, draft.plain)]
        budget = None if draft.budget is None else astuple(draft.budget)
        own = (plan.widths, plan.graph_width, plan.cost_ns, plan.trusted, plan.levels, plan.worst)
        parts = (draft.request_ids, draft.kind.value, choices, budget, *own, plan.request_worst)
        self._seen.update(repr(parts).encode())
        self.num_steps += 1

    @property
    def value(self) -> str:
        return f"{self.num_steps} steps, {self._seen.hexdigest()[:24]}"


def traces() -> Iterator[tuple[str, str, ControllerSettings, int, int]]:
    """Every recipe, the other settings going round."""
    tables = list(TABLES)
    for idx, recipe in enumerate(ALL_RECIPES):
        for batch_idx, batch in enumerate((1, 4, 16)):
            turn = idx + batch_idx
            settings = ControllerSettings(
                shape=list(VerifyShape)[(turn + 1) % 2], share=list(RegretShare)[(turn % 3) // 2]
            )
            yield recipe.name, tables[turn % 4], settings, batch, turn // 2 % 2


def run_trace(name: str, table: CostTable, settings: ControllerSettings, batch: int, lag: int) -> str:
    recipe = RECIPES[name]
    tokens = max(40, TOKENS // recipe.num_requests)
    digest = Digest()
    trace = draw_trace(replace(recipe, tokens=min(recipe.tokens, tokens)), 0)
    run_policy(trace, table, Controlled(table, settings, lag=lag, watch=digest.add), batch)
    return digest.value


def run_traffic(seed: int, settings: ControllerSettings) -> str:
    """What the traces lack: wishes, sampled requests among greedy ones, results of requests that are gone,
    batches beyond the table, conversations."""
    draw = random.Random(seed)
    digest = Digest()
    controller = SpeculationController(published_costs.tp4_tuned(), replace(settings, max_conversations=16))
    wishes = [AUTO] * 5 + [OFF, *(SpecOption(mode=SpecMode.FIXED, width=width) for width in (1, 3, 5))]
    wishes += [SpecOption(mode=SpecMode.DRAFT_ONLY)]
    running: list[str] = []
    luck: dict[str, float] = {}
    waiting: deque[tuple[VerifyPlan, list[int]]] = deque()
    born, most = 0, 1
    for step in range(TOKENS // 2):
        if step % 25 == 0:
            most = draw.choice((1, 2, 3, 4, 7, 16, 18))
        while len(running) > most or (running and draw.random() < 0.02):
            gone = running.pop(draw.randrange(len(running)))
            controller.finish(gone, (), (str(draw.randrange(12)).encode(),))
        while len(running) < most:
            running.append(f"r{born}")
            luck[running[-1]] = draw.choice((0.02, 0.2, 0.5, 0.7, 0.9, 1.0))
            controller.admit(running[-1], draw.choice(wishes), (str(draw.randrange(12)).encode(),))
            born += 1
        draft = controller.plan_draft(running)
        confidence = None
        if step // 200 % 2:
            confidence = [
                None
                if draw.random() < 0.2
                else [int(65536 * min(1.0, luck[one] * draw.uniform(0.5, 1.2))) for _ in range(5)]
                for one in running
            ]
        plan = controller.plan_verify(draft, confidence)
        digest.add(plan)
        accepted = []
        for one, width in zip(running, plan.widths, strict=True):
            count = 0
            while count < width and draw.random() < luck[one]:
                count += 1
            accepted.append(count)
            if draw.random() < 0.01:
                luck[one] = draw.choice((0.02, 0.5, 0.95))
        waiting.append((plan, accepted))
        while len(waiting) > step // 100 % 3:
            controller.observe(*waiting.popleft())
    return digest.value


def expected(case: str, found: str) -> str:
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("SPARKCTL_WRITE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(golden | {case: found}, indent=1, sort_keys=True) + "\n")
        return found
    return str(golden[case])


@pytest.mark.parametrize("group", range(5))
def test_plans_of_generated_traces_are_what_they_were(group: int) -> None:
    for name, table, settings, batch, lag in list(traces())[group::5]:
        case = f"{name}, {table}, {settings.shape}, {settings.share}, batch {batch}, lag {lag}"
        found = run_trace(name, TABLES[table], settings, batch, lag)
        assert found == expected(case, found), case


@pytest.mark.parametrize("share", list(RegretShare))
@pytest.mark.parametrize("shape", list(VerifyShape))
def test_plans_of_mixed_traffic_are_what_they_were(shape: VerifyShape, share: RegretShare) -> None:
    for seed in range(3):
        found = run_traffic(seed, ControllerSettings(shape=shape, share=share))
        case = f"traffic {seed}, {shape}, {share}"
        assert found == expected(case, found), case

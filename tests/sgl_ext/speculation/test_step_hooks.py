"""What the hooks of a step leave out of SGLang's own: the budget of verify rows and its copies."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_ext.hooks.spec_budget import prepare_nothing
from sgl_ext.hooks.spec_budget_sync import resolve_nothing
from sgl_ext.hooks.spec_propose import draft_if_planned
from sgl_ext.hooks.spec_result import observe_accepted
from sgl_ext.hooks.spec_step import plan_and_run
from sgl_ext.speculation import published_costs
from sgl_ext.speculation.controller import VerifyShape
from sgl_ext.speculation.engine_speculation import EngineSpeculation, set_speculation
from sgl_ext.speculation.rank_speculation import RankSpeculation

REQUEST = SimpleNamespace(
    rid="a", origin_input_ids=[1, 2], output_ids=[], sampling_params=SimpleNamespace(custom_params=None)
)
BATCH = SimpleNamespace(reqs=[REQUEST], forward_mode=SimpleNamespace(is_idle=lambda: False))


@pytest.fixture
def speculation() -> Iterator[EngineSpeculation]:
    rank = RankSpeculation(block=5, shape=VerifyShape.RAGGED, table=published_costs.tp4_tuned())
    running = EngineSpeculation(rank, device=torch.device("cpu"), group=None, publisher=None)
    set_speculation(running)
    yield running
    set_speculation(None)


def step(speculation: EngineSpeculation, accepted: int) -> dict[str, Any]:
    """One step as SGLang runs it, and what was seen in it."""
    seen: dict[str, Any] = {}

    def forward(worker: Any, batch: Any, on_publish: Any, *rest: Any) -> Any:
        planned = speculation.step
        assert planned is not None
        if planned.drafts:
            draft_if_planned(lambda proposer, **kwargs: None, None, verify_window="window")
        seen["window"] = planned.window
        seen["clock"] = planned.clock
        seen["budget"] = resolve_nothing(lambda planner, **kwargs: "of SGLang", None)
        seen["rest"] = rest
        seen["width"] = planned.plan.widths[0]
        on_publish("lengths", confidence="confidence")
        return SimpleNamespace(accept_lens=torch.tensor([1 + min(accepted, planned.plan.widths[0])]))

    def publish(*args: Any, **kwargs: Any) -> None:
        seen["published"] = args, kwargs

    result = plan_and_run(forward, None, BATCH, publish, "barrier")
    observe_accepted(lambda *args: None, None, result, BATCH)
    return seen


def test_a_step_publishes_lengths_alone_and_asks_for_no_budget(speculation: EngineSpeculation) -> None:
    seen = step(speculation, 5)
    assert seen["published"] == (("lengths",), {})
    assert seen["budget"] is None and seen["rest"] == ("barrier",)
    assert seen["width"] > 0 and seen["window"] == "window"
    assert prepare_nothing(None) is None
    # Outside of a step (warm-up), SGLang's own.
    assert resolve_nothing(lambda planner, **kwargs: "of SGLang", None) == "of SGLang"


def test_clocks_and_lengths_are_used_again_and_times_are_each_steps_own(
    speculation: EngineSpeculation,
) -> None:
    clocks = {id(step(speculation, 0)["clock"]) for _ in range(60)}
    assert len(clocks) == 1
    samples = {family.name: family.samples for family in speculation.rank.metrics.families()}
    draft, verify = (samples[f"sparkctl_spec_{name}_seconds"][0][1] for name in ("draft", "verify"))
    assert 0 < draft < 1 and 0 < verify < 1
    assert speculation.layouts.lens((0,)) is speculation.layouts.lens((0,))

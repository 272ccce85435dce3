"""What a rank decides in a running engine: wishes of requests, the table, and that ranks agree."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_ext.errors import CostTableError, SpecOptionError, SpecRankError
from sgl_ext.speculation import published_costs
from sgl_ext.speculation.attach import require_same_table
from sgl_ext.speculation.controller import VerifyShape
from sgl_ext.speculation.engine_speculation import EngineSpeculation
from sgl_ext.speculation.rank_speculation import MAX_LIVE, RankSpeculation
from sgl_ext.speculation.step_plan import StepKind

BLOCK = 5


@dataclass
class Request:
    """The attributes of SGLang's Req that are read."""

    rid: str
    spec: object = "auto"
    origin_input_ids: list[int] = field(default_factory=lambda: list(range(200)))
    output_ids: list[int] = field(default_factory=list)

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(custom_params={"spec": self.spec})


def untuned() -> RankSpeculation:
    return RankSpeculation(block=BLOCK, shape=VerifyShape.RAGGED, table=None)


def tuned(shape: VerifyShape = VerifyShape.RAGGED) -> RankSpeculation:
    return RankSpeculation(block=BLOCK, shape=shape, table=published_costs.tp4_tuned())


@pytest.mark.parametrize(
    ("wishes", "widths", "kind"),
    [
        (["auto", "off", 2], (5, 0, 2), StepKind.UNTUNED),
        (["off", False, 0], (0, 0, 0), StepKind.OFF),
        (["off", 3], (0, 3), StepKind.FIXED),
        (["draft-only", "off"], (0, 0), StepKind.FIXED),
    ],
)
def test_without_a_table_each_request_gets_what_it_asked_for(
    wishes: list[object], widths: tuple[int, ...], kind: StepKind
) -> None:
    step = untuned().plan([Request(str(idx), wish) for idx, wish in enumerate(wishes)])
    assert step.plan.widths == widths
    assert step.plan.draft.kind is kind
    assert step.drafts is (kind is not StepKind.OFF)


def test_a_table_leaves_wishes_alone_and_stops_drafting_where_it_does_not_pay() -> None:
    rank = tuned()
    requests = [Request("auto"), Request("fixed", 2), Request("off", "off")]
    assert rank.plan(requests).plan.widths[1:] == (2, 0)
    alone = tuned()
    kinds = []
    for _ in range(60):
        step = alone.plan([Request("a")])
        kinds.append(step.plan.draft.kind)
        alone.observe(step, [0])
    assert StepKind.NOT_PAYING in kinds
    assert kinds[-8:].count(StepKind.PROBE) <= 1
    assert alone.metrics.families()[0].samples[0][1] == 60


def test_what_a_request_taught_outlives_it() -> None:
    """The next turn begins with this one's prompt and answer, whether or not the prefix cache has them."""
    rank = tuned()
    first = Request("a", output_ids=list(range(500, 600)))
    for _ in range(60):
        step = rank.plan([first])
        rank.observe(step, [0] * 1)
    rank.finish("a")
    turn = Request("b", origin_input_ids=[*first.origin_input_ids, *first.output_ids, 7, 8])
    other = Request("c", origin_input_ids=list(range(1000, 1400)))
    rank.plan([turn])
    rank.plan([other])
    chances = [state.estimate.chances()[0] for state in rank._controller._requests.values()]  # type: ignore[union-attr]
    assert chances[0] < chances[1]


def test_ranks_that_see_the_same_agree_and_others_do_not() -> None:
    ranks = [tuned() for _ in range(3)]
    draw = random.Random(1)
    for step_idx in range(200):
        requests = [Request(f"{idx + step_idx // 40}") for idx in range(1 + step_idx % 3)]
        accepted = [draw.randrange(6) for _ in requests]
        for rank in ranks:
            step = rank.plan(requests)
            rank.observe(step, [min(pair) for pair in zip(accepted, step.plan.widths, strict=True)])
    assert len({rank.agreement for rank in ranks}) == 1
    ranks[0].plan([Request("z")])
    assert ranks[0].agreement != ranks[1].agreement


def test_a_bad_wish_is_refused_by_name() -> None:
    with pytest.raises(SpecOptionError, match=r'must be "auto", "off" or a width of 0 to 5, got 9'):
        untuned().read_option(Request("a", 9))


def test_requests_that_never_end_do_not_pile_up() -> None:
    rank = tuned()
    for idx in range(MAX_LIVE + 10):
        step = rank.plan([Request(str(idx), origin_input_ids=[1])])
        rank.observe(step, [0])
    assert len(rank._live) == MAX_LIVE
    rank.finish("0")  # long let go: nothing to do


def test_ranks_that_differ_are_stopped() -> None:
    """Two processes. At the start their tables differ; later the second one has seen another result."""
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    answers = context.Queue()
    port = 29000 + random.Random().randrange(2000)
    workers = [context.Process(target=_run_rank, args=(rank, port, answers)) for rank in range(2)]
    for worker in workers:
        worker.start()
    said = dict(answers.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(30)
    for rank in range(2):
        refusal, stop = said[rank]
        assert "cost table must be the same on every rank, got sha256:1 on rank 1 and sha256:0" in refusal
        assert "Every rank must decide the same about step 3" in stop


def _run_rank(rank: int, port: int, answers: Any) -> None:
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    group = torch.distributed.group.WORLD
    refusal = "nothing"
    try:
        require_same_table(f"sha256:{rank}", group, 2)
    except CostTableError as error:
        refusal = error.message
    require_same_table("sha256:0", group, 2)
    speculation = EngineSpeculation(tuned(), device=torch.device("cpu"), group=group, publisher=None)
    said = "nothing"
    try:
        for step in range(4):
            speculation.begin([Request("a"), *([Request("b")] if rank and step == 2 else [])])
            planned = speculation.step
            assert planned is not None
            if planned.drafts:
                planned.clock.mark()
            result = SimpleNamespace()
            speculation.end(result)
            speculation.observe(result, [1] * len(planned.plan.widths))
    except SpecRankError as error:
        said = error.message
    answers.put((rank, (refusal, said)))
    torch.distributed.destroy_process_group()

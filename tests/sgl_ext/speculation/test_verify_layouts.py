"""Layouts are kept by width: the same tensors for the same widths, as SGLang itself would build them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from sgl_ext.speculation.verify_layouts import MAX_LAYOUTS, VerifyLayouts

CPU = torch.device("cpu")
needs_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel")


def test_a_layout_is_built_once_for_its_widths_and_none_too() -> None:
    layouts = VerifyLayouts(CPU)
    built: list[list[int]] = []

    def build(lens: torch.Tensor) -> object:
        built.append(lens.tolist())
        return None if len(built) == 2 else object()

    first = layouts.layout((5, 0), build)
    assert layouts.layout((0, 5), build) is None
    assert layouts.layout((5, 0), build) is first
    assert layouts.layout((0, 5), build) is None
    assert built == [[6, 1], [1, 6]]
    assert layouts.lens((5, 0)) is layouts.lens((5, 0))


def test_a_padding_is_kept_for_the_layout_of_the_step_and_no_other() -> None:
    layouts = VerifyLayouts(CPU)
    mine, other = layouts.layout((1,), lambda lens: object()), object()
    built = [layouts.keep(mine, cap, object) for cap in (None, 6, None, 6)]
    assert (built[0], built[1]) == (built[2], built[3]) and built[0] is not built[1]
    assert layouts.keep(other, None, object) is not layouts.keep(other, None, object)
    layouts.layout((2,), lambda lens: object())
    assert layouts.keep(mine, None, object) is not built[0]  # it is not this step's
    layouts.layout((1,), lambda lens: pytest.fail("it was built before"))
    assert layouts.keep(mine, None, object) is built[0]


def test_layouts_do_not_pile_up() -> None:
    layouts = VerifyLayouts(CPU)
    kept = layouts.lens((1,))
    for width in range(2, MAX_LAYOUTS + 10):
        layouts.lens((width,))
        assert layouts.lens((1,)) is kept  # used all the time
    assert len(layouts._entries) == MAX_LAYOUTS


@pytest.fixture
def speculation() -> Iterator[Any]:
    from sgl_ext.speculation.engine_speculation import set_speculation
    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    with patch.dict(os.environ, {"SGLANG_USE_CPU_ENGINE": "1"}):
        running = SimpleNamespace(layouts=VerifyLayouts(CPU), step=None)
        set_speculation(running)  # type: ignore[arg-type]
        yield running
        set_speculation(None)


@needs_sglang
@pytest.mark.sglang
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("widths", [(5, 5), (0, 0, 0), (5, 0, 2)])
def test_the_hooks_give_what_sglang_builds(speculation: Any, widths: tuple[int, ...]) -> None:
    """With tiers of graphs, as a GPU has them."""
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout, RaggedVerifyMode

    from sgl_ext.hooks.spec_layout import lay_out_planned
    from sgl_ext.hooks.spec_padding import pad_once

    grid = [6, 12, 24]
    runner = SimpleNamespace(ragged_verify_mode=True, capture_num_tokens=grid, max_bs=4)
    planner = SimpleNamespace(
        is_compact_mode=True,
        verify_num_draft_tokens=6,
        _ragged_verify_mode=RaggedVerifyMode.COMPACT,
        model_runner=SimpleNamespace(decode_cuda_graph_runner=runner),
    )
    speculation.step = SimpleNamespace(plan=SimpleNamespace(widths=widths))

    def fail(*args: Any, **kwargs: Any) -> None:
        pytest.fail("SGLang's own layout")

    found = [lay_out_planned(fail, planner) for _ in range(2)]
    assert found[0] is found[1]
    wanted = RaggedVerifyLayout.from_verify_lens(
        verify_lens_cpu=[width + 1 for width in widths], device=CPU, grid=grid
    )
    same(found[0], wanted)
    original = RaggedVerifyLayout.padded_to_bucket
    for cap in (None, 6):
        padded = [pad_once(original, found[0], padded_bs=4, cap=cap) for _ in range(2)]
        assert padded[0] is padded[1]
        same(padded[0], original(wanted, padded_bs=4, cap=cap))


@needs_sglang
@pytest.mark.sglang
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("widths", "tier"), [((5, 5), 12), ((5, 5), 24), ((0, 0, 0), 3), ((0, 0, 0), 6), ((5, 0, 2), 12)]
)
def test_rows_of_the_window_are_those_that_sglang_finds(
    speculation: Any, widths: tuple[int, ...], tier: int
) -> None:
    """And a window that is not SGLang's ends the engine by name, as long as windows are still proved."""
    from sglang.kernels.ops.speculative.dspark import dspark_verify_window as stock
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    from sgl_ext.errors import EffectError
    from sgl_ext.hooks.ragged_slots import gather_ragged_slots
    from sgl_ext.hooks.spec_window import take_rows

    batch, generator = len(widths), torch.Generator().manual_seed(sum(widths) + tier)
    req_to_token = torch.randperm(400, generator=generator).view(8, 50).to(torch.int32)
    slots, prefix = torch.arange(batch) + 2, torch.randint(1, 40, (batch,), generator=generator)
    positions = prefix.unsqueeze(1) + torch.arange(6)
    window = SimpleNamespace(
        positions_2d=positions, verify_cache_loc=req_to_token[slots.unsqueeze(1), positions].long().flatten()
    )
    layout = RaggedVerifyLayout.from_verify_lens(
        verify_lens_cpu=[width + 1 for width in widths], device=CPU, grid=[tier]
    )
    speculation.layouts.layout(widths, lambda lens: layout)
    speculation.step, speculation.windows_to_prove = SimpleNamespace(window=window), 1
    arguments = {
        "batch": SimpleNamespace(seq_lens=prefix, req_pool_indices=slots),
        "layout": layout,
        "draft_block_ids": torch.randint(1, 900, (batch, 5), generator=generator),
        "draft_tokens": torch.randint(1, 900, (batch, 5), generator=generator),
        "bs": batch,
        "device": "cpu",
        "verify_num_draft_tokens": 6,
        "model_runner": SimpleNamespace(req_to_token_pool=SimpleNamespace(req_to_token=req_to_token)),
    }
    with patch.object(stock, "assign_extend_cache_locs_func", gather_ragged_slots):
        wanted = stock.build_ragged_verify_window(**arguments)  # type: ignore[arg-type]
        found = take_rows(stock.build_ragged_verify_window, **arguments)  # proved here
        for name in ("positions", "verify_cache_loc", "verify_ids"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        if found.window_index is None:  # the whole window
            assert wanted.window_index.tolist() == list(range(6 * batch))
        else:
            assert torch.equal(found.window_index, wanted.window_index)

        def fail(**kwargs: Any) -> None:
            pytest.fail("a window was proved that no longer is")

        assert torch.equal(take_rows(fail, **arguments).positions, wanted.positions)
        speculation.windows_to_prove = 1
        window.positions_2d = positions + 1
        with pytest.raises(EffectError, match="The positions of a ragged verify must be SGLang's"):
            take_rows(stock.build_ragged_verify_window, **arguments)


def same(one: Any, two: Any) -> None:
    for name in one.__struct_fields__:
        left, right = getattr(one, name), getattr(two, name)
        if isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype and left.tolist() == right.tolist(), name
        else:
            assert left == right, name


@needs_sglang
@pytest.mark.sglang
@pytest.mark.filterwarnings("ignore")
def test_an_empty_draft_is_made_anew_only_where_the_batch_changed() -> None:
    from sgl_ext.hooks.spec_propose import propose_nothing
    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    with patch.dict(os.environ, {"SGLANG_USE_CPU_ENGINE": "1"}):
        head = SimpleNamespace(confidence_head=object())
        proposer = SimpleNamespace(gamma=5, query_token_num=5, draft_model=head)

        def propose(bonus: list[int], sampling: Any) -> Any:
            tokens = SimpleNamespace(bonus_tokens=torch.tensor(bonus))
            return propose_nothing(
                proposer, draft_input=tokens, bs=len(bonus), sampling_info=sampling, device=CPU
            )

        sampling = SimpleNamespace(temperatures=torch.tensor([[0.5], [1.0]]), top_ks=torch.tensor([1, 50]))
        first = propose([7, 8], sampling)
        assert first.draft_block_ids.tolist() == [[7, 0, 0, 0, 0], [8, 0, 0, 0, 0]]
        assert first.draft_block.greedy_mask.tolist() == [True, False]
        again = propose([9, 3], sampling)
        assert again is first
        assert again.draft_block_ids.tolist() == [[9, 0, 0, 0, 0], [3, 0, 0, 0, 0]]
        assert not again.confidence.any() and not again.draft_block.draft_tokens.any()
        cold = SimpleNamespace(temperatures=torch.tensor([[1.0], [1.0]]), top_ks=torch.tensor([1, 1]))
        assert propose([9, 3], cold).draft_block.greedy_mask.tolist() == [True, True]
        assert propose([4], None).draft_block_ids.tolist() == [[4, 0, 0, 0, 0]]

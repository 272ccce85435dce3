"""An expert's rows reach Marlin in ascending order on every path of the wheel, and boot proves it."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

from sgl_ext.hooks.expert_row_order import find_disorder, order_pairs  # noqa: E402
from tests.sgl_ext.run_interpreted import run_interpreted  # noqa: E402

BLOCK = 4
IDS = torch.tensor([[0, 2], [-1, 0], [2, -1], [0, 0]])


def aligned(pairs: list[int], experts: list[int], total: int) -> tuple[torch.Tensor, ...]:
    return torch.tensor(pairs, dtype=torch.int32), torch.tensor(experts), torch.tensor([total])


def test_order_of_an_experts_rows() -> None:
    """Two experts, blocks of four, nine pairs (9 is padding); what lies past the total is anything."""
    pairs = torch.tensor([3, 0, 9, 9, 2, 1, 8, 9, 77, -5], dtype=torch.int32)
    order_pairs(pairs, torch.tensor([0, 1, 123456]), torch.tensor([8]), BLOCK, 9)
    assert pairs.tolist() == [0, 3, 9, 9, 1, 2, 8, 9, 9, 9]


def test_pairs_of_other_ranks_come_first_and_are_ordered_too() -> None:
    """As one H200 of two gave them with expert groups: blocks of expert -1 lead, several for one expert."""
    pairs = torch.tensor([5, 2, 8, 8, 7, 0, 6, 3, 4, 1, 8, 8], dtype=torch.int32)
    order_pairs(pairs, torch.tensor([-1, 0, 2]), torch.tensor([12]), BLOCK, 8)
    assert pairs.tolist() == [2, 5, 8, 8, 0, 3, 6, 7, 1, 4, 8, 8]
    assert find_disorder(IDS, (pairs, torch.tensor([-1, 0, 2]), torch.tensor([12])), BLOCK) is None


WRONG = {
    "a pair before a lower one": (
        [2, 5, 8, 8, 3, 0, 6, 7, 1, 4, 8, 8],
        "pair 0 of expert 0 after pair 3 (1 of 8 pairs out of order)",
    ),
    "padding before a pair": ([2, 5, 8, 8, 0, 3, 6, 7, 1, 8, 4, 8], "pair 4 of expert 2 after pair 8"),
    "a pair of another expert": ([2, 5, 8, 8, 0, 1, 6, 7, 3, 4, 8, 8], "pairs in blocks of another expert"),
    "a pair left out": ([2, 5, 8, 8, 0, 3, 6, 7, 1, 8, 8, 8], "5 pairs of local experts instead of 6"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_disorder_is_named(name: str) -> None:
    pairs, message = WRONG[name]
    assert message in str(find_disorder(IDS, aligned(pairs, [-1, 0, 2], 12), BLOCK))  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs SGLang: make up installs it")
def test_marlins_moe_of_the_wheel_gets_ordered_rows_with_and_without_expert_groups() -> None:
    run_interpreted("tests.sgl_ext.experts.check_row_order")

"""What the indexer's boot check finds: kernels in plain PyTorch, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

from sgl_ext.errors import CapabilityError  # noqa: E402
from sgl_ext.indexer import boot_check  # noqa: E402
from sgl_ext.indexer.boot_check import (  # noqa: E402
    PAGE_SIZE,
    IndexerKernels,
    check_indexer,
    describe_indexer,
    require_indexer,
)
from sgl_ext.indexer.reference import block_maxima, select_highest  # noqa: E402
from sgl_ext.kernels.index_key_slots import load_keys  # noqa: E402
from sgl_ext.kernels.index_logits import score_keys  # noqa: E402
from tests.sgl_ext.gloo_ranks import answers_of_ranks  # noqa: E402

HEADS, TOPK, CAPACITY = 8, 48, 400
CODES = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def score_plain(
    q: torch.Tensor,
    weights: torch.Tensor,
    req: torch.Tensor,
    req_to_token: torch.Tensor,
    lens: torch.Tensor,
    keys: torch.Tensor,
    *,
    capacity: int,
    ratio: int,
    blocks: torch.Tensor | None = None,
) -> torch.Tensor:
    """As score_live: what lies past a row's live length is left as it was."""
    out = torch.full((len(lens), capacity), 7e29)
    for row, live in enumerate(lens.tolist()):
        slots = req_to_token[req[row], : live * ratio : ratio].long() // ratio
        if live:
            own = load_keys(keys, slots.unsqueeze(0), PAGE_SIZE, CODES)
            out[row, :live] = score_keys(q[row : row + 1], weights[row : row + 1], own)[0]
    if blocks is None:
        return out
    place = (blocks.clamp_min(0).long().unsqueeze(2) * 8 + torch.arange(8)).flatten(1)
    reach = (blocks >= 0).repeat_interleave(8, 1) & (place < lens.unsqueeze(1))
    return torch.where(reach, out.gather(1, place.clamp_max(capacity - 1)), -torch.inf)


def slots_plain(
    *args: torch.Tensor, k: int, blocks: torch.Tensor | None = None, **shape: int
) -> torch.Tensor:
    _, _, req, req_to_token, lens, _ = args
    scores = score_plain(*args, **shape)
    place = torch.arange(scores.shape[1])
    scores = scores.masked_fill(place >= lens.unsqueeze(1), -torch.inf)
    if blocks is not None:
        scores = scores.masked_fill(~((place // 8).unsqueeze(1) == blocks.unsqueeze(1)).any(2), -torch.inf)
    positions = select_highest(scores, lens, k)
    token = positions.clamp_min(0).long() * shape["ratio"]
    slots = req_to_token[req.unsqueeze(1), token] // shape["ratio"]
    return torch.where(positions >= 0, slots, -1).to(torch.int32)


def blocks_plain(scores: torch.Tensor, lens: torch.Tensor, count: int) -> torch.Tensor:
    return select_highest(block_maxima(scores, lens), (lens + 7) // 8, count)


PLAIN = IndexerKernels(
    score=score_plain, select=select_highest, maxima=block_maxima, slots=slots_plain, blocks=blocks_plain
)


def check(kernels: IndexerKernels) -> boot_check.IndexerVerdict:
    return check_indexer(kernels, torch.device("cpu"), heads=HEADS, topk=TOPK, capacity=CAPACITY)


def test_what_does_as_plain_pytorch_passes() -> None:
    verdict = check(PLAIN)
    assert verdict.problem is None and set(verdict.errors) == {"ratio 1", "ratio 2"}


def raises(*args: object, **how: object) -> torch.Tensor:
    raise RuntimeError("no kernel image")


def changed_score(change: Callable[..., torch.Tensor]) -> IndexerKernels:
    return replace(PLAIN, score=change)


def without_head(q: torch.Tensor, weights: torch.Tensor, *rest: torch.Tensor, **how: object) -> torch.Tensor:
    return score_plain(q, weights * (torch.arange(HEADS) > 0), *rest, **how)  # type: ignore[arg-type]


def row_of_a_neighbour(
    q: torch.Tensor, w: torch.Tensor, req: torch.Tensor, *rest: torch.Tensor, **how: object
) -> torch.Tensor:
    return score_plain(q, w, req.roll(1), *rest, **how)  # type: ignore[arg-type]


def rolled_where_listed(*args: torch.Tensor, **how: object) -> torch.Tensor:
    seen = score_plain(*args, **how)  # type: ignore[arg-type]
    return seen if how.get("blocks") is None else seen.roll(8, 1)


def scales_of_the_next_slot(
    q: torch.Tensor,
    w: torch.Tensor,
    req: torch.Tensor,
    table: torch.Tensor,
    lens: torch.Tensor,
    keys: torch.Tensor,
    **how: object,
) -> torch.Tensor:
    moved = keys.clone()
    moved[:, PAGE_SIZE * 64 :] = keys[:, PAGE_SIZE * 64 :].roll(4, 1)
    return score_plain(q, w, req, table, lens, moved, **how)  # type: ignore[arg-type]


MISTAKES = {
    "scores of the next position": (
        changed_score(lambda *a, **how: score_plain(*a, **how).roll(1, 1)),
        "relative error",
    ),
    "a head left out": (changed_score(without_head), "relative error"),
    "another request's slots": (changed_score(row_of_a_neighbour), "relative error"),
    "scales of the next slot": (changed_score(scales_of_the_next_slot), "relative error"),
    "not a number": (changed_score(lambda *a, **how: score_plain(*a, **how) * torch.nan), "got nan"),
    "another row's selection": (
        replace(PLAIN, select=lambda s, n, k: select_highest(s, n, k).roll(1, 0)),
        "the highest 48 must be",
    ),
    "the last position left out": (
        replace(PLAIN, select=lambda s, n, k: select_highest(s, n - 1, k)),
        "the highest 48 must be",
    ),
    "past the live length": (
        replace(PLAIN, select=lambda s, n, k: select_highest(s, n + 1, k)),
        "the highest 48 must be",
    ),
    "another row's blocks": (
        replace(PLAIN, maxima=lambda s, n: block_maxima(s, n).roll(1, 0)),
        "the blocks' highest scores",
    ),
    "listed blocks in another order": (changed_score(rolled_where_listed), "scores of listed blocks"),
    "slots of another row": (
        replace(PLAIN, slots=lambda *a, **how: slots_plain(*a, **how).roll(1, 0)),
        "the slots of the highest 48 must be",
    ),
    "slots in another order": (
        replace(PLAIN, slots=lambda *a, **how: slots_plain(*a, **how).flip(1)),
        "the slots of the highest 48 must be",
    ),
    "blocks without the newest": (
        replace(PLAIN, blocks=lambda s, n, k: blocks_plain(s, n - 8, k)),
        "the blocks with the highest scores",
    ),
    "slots of blocks that were not listed": (
        replace(PLAIN, slots=lambda *a, blocks=None, **how: slots_plain(*a, **how)),
        "highest 48 of listed blocks",
    ),
    "raises": (changed_score(raises), "raised RuntimeError: no kernel image"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_named(name: str) -> None:
    kernels, message = MISTAKES[name]
    assert message in str(check(kernels).problem)


CONFIG = SimpleNamespace(index_n_heads=HEADS, index_topk=TOPK)


@pytest.mark.parametrize(("ranks", "bad"), [(2, 1), (3, 0), (3, None)])
def test_one_rank_whose_kernels_fail_ends_all_ranks_by_name(
    ranks: int, bad: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_check._state().clear()

    def vote(rank: int, group: Any) -> Any:
        own = changed_score(raises) if rank == bad else PLAIN
        monkeypatch.setattr(boot_check, "own_kernels", lambda: own)
        require_indexer(CONFIG, SimpleNamespace(tp_rank=rank), device=torch.device("cpu"), group=group)
        return describe_indexer()

    seen = answers_of_ranks(ranks, vote, tmp_path / "store")
    if bad is None:
        assert all(told["problem"] is None and told["error_bound"] == 0.01 for told in seen)
        return
    (message,) = set(seen)
    assert message.startswith("The indexer's kernels must pass their check on every rank, got raised")
    assert f"no kernel image (rank {bad} on " in message and message.count("(rank ") == 1


def test_a_single_rank_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot_check, "own_kernels", lambda: changed_score(raises))
    boot_check._state().clear()
    with pytest.raises(CapabilityError, match=r"no kernel image \(rank 0 on"):
        require_indexer(CONFIG, SimpleNamespace(tp_rank=0), device=torch.device("cpu"), group=None)
    told = describe_indexer()
    assert told is not None and "no kernel image" in str(told["problem"])
    boot_check._state().clear()

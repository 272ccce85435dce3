"""Rows split over gloo ranks: gathered, summed and scattered they are the whole, to the bit where asked."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

from sgl_ext.errors import SettingError  # noqa: E402
from sgl_ext.sequence_parallel import RowShare, SharedState, read_sequence_parallel  # noqa: E402


class GlooGroup:
    """SGLang's group by its three collectives, over the default process group."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank_in_group, self.world_size = rank, size

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        out = input_.clone()
        torch.distributed.all_reduce(out)
        return out

    def reduce_scatter_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None:
        torch.distributed.reduce_scatter(output, list(input.chunk(self.world_size)))

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None:
        torch.distributed.all_gather(list(output.chunk(self.world_size)), input)


class State:
    """As much of SGLang's HcState as two layers hand on."""

    def __init__(self, residual: torch.Tensor, pre: torch.Tensor | None = None) -> None:
        self.residual, self.pre = residual, pre

    def take_rows(self, rows: Callable[[torch.Tensor], torch.Tensor]) -> State:
        return State(rows(self.residual), None if self.pre is None else rows(self.pre))


def exercise(rank: int, size: int, store: Path, answers: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    found = []
    for tokens in (size * size, 64, 1301):
        for exact in (False, True):
            rows = RowShare(num_tokens=tokens, group=GlooGroup(rank, size), exact=exact)
            draw = torch.Generator().manual_seed(tokens)
            parts = torch.randn((size, tokens, 5), generator=draw)
            state = torch.randn((tokens, 4, 3), generator=draw)
            start = min(rank * rows.share, tokens)
            own = rows.keep(state)
            assert torch.equal(own, state[start : start + rows.share]) and own.shape[0] > 0
            assert torch.equal(rows.gather(own), state)
            off = GlooGroup(rank, size).all_reduce(parts[rank])
            added = rows.add_up(parts[rank])
            wanted = off[start : start + rows.share]
            assert torch.equal(added, wanted) if exact else torch.allclose(added, wanted, atol=1e-6)
            shared = SharedState(State(state, off[:, :4]).take_rows(rows.keep), rows, State)
            assert torch.equal(shared.residual, state) and torch.equal(shared.pre, off[:, :4])
            found.append(own.shape[0])
    answers.put((rank, found))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_rows_of_gloo_ranks(size: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ranks = [
        context.Process(target=exercise, args=(rank, size, tmp_path / "store", answers))
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    seen = dict(answers.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(timeout=30)
        assert process.exitcode == 0
    for case in range(6):
        assert (
            sum(seen[rank][case] for rank in range(size))
            == (size * size, size * size, 64, 64, 1301, 1301)[case]
        )


def test_settings() -> None:
    assert read_sequence_parallel({}, 3) is None
    assert read_sequence_parallel({"SPARKCTL_SEQUENCE_PARALLEL": "off"}, 1) is None
    prefill = read_sequence_parallel({"SPARKCTL_SEQUENCE_PARALLEL": "prefill"}, 3)
    assert prefill is not None and not prefill.exact and prefill.from_tokens == 2048
    exact = {"SPARKCTL_SEQUENCE_PARALLEL": "prefill-exact", "SPARKCTL_SEQUENCE_PARALLEL_FROM": "16"}
    seen = read_sequence_parallel(exact, 4)
    assert seen is not None and seen.exact and seen.from_tokens == 16
    with pytest.raises(SettingError, match="from 25 on, got '16'"):
        read_sequence_parallel(exact, 5)
    with pytest.raises(SettingError, match="must be one of off, prefill, prefill-exact, got 'decode'"):
        read_sequence_parallel({"SPARKCTL_SEQUENCE_PARALLEL": "decode"}, 2)
    with pytest.raises(SettingError, match="must be off with one rank"):
        read_sequence_parallel({"SPARKCTL_SEQUENCE_PARALLEL": "prefill"}, 1)

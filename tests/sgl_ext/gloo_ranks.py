"""A vote among ranks in processes of their own, over gloo, as an engine's ranks vote over its CPU group."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sgl_ext.errors import SglExtError


def answers_of_ranks(ranks: int, answer: Callable[[int, Any], Any], store: Path) -> list[Any]:
    """answer(rank, group) of every rank, in order; a refusal's message stands for an answer."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [
        context.Process(target=_answer_in_process, args=(rank, ranks, answer, store, answers))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    seen = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=30)
        assert process.exitcode == 0
    return [seen[rank] for rank in range(ranks)]


def _answer_in_process(
    rank: int, ranks: int, answer: Callable[[int, Any], Any], store: Path, answers: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    try:
        answers.put((rank, answer(rank, dist.group.WORLD)))
    except SglExtError as error:
        answers.put((rank, error.message))
    dist.destroy_process_group()

"""Whether this GPU's indexer kernels score and select as plain PyTorch does: asked once, before the model.

Drawn keys in SGLang's packed slots, spread over a pool; rows of different live lengths under a capacity that
is longer than all of them; both compress ratios. Scores are compared with PyTorch over the same bytes; the
selection, the blocks' maxima and the scores of listed blocks must then be exactly what follows from them.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sgl_ext.errors import CapabilityError
from sgl_ext.experts.candidate import Presence
from sgl_ext.experts.choose import Vote
from sgl_ext.experts.gather_votes import gather_votes
from sgl_ext.experts.self_check import make_verdict
from sgl_ext.indexer.reference import block_maxima, select_highest
from sgl_ext.kernels.index_key_slots import KEY_DIM, load_keys
from sgl_ext.kernels.index_logits import score_keys

PAGE_SIZE = 64  # of SGLang's index keys on sm_12x
CAPACITY = 9000
_SLOT_BYTES = 68
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BOUND = 0.01  # the heads added in another order move a score by a bf16 step; a wrong slot by its size
_REPEATS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerKernels:
    """score, select, maxima: as in score_kernels.py and select_kernels.py. slots, blocks: as decode_step.py
    puts them together, with counts made while scoring: int32 [B, k] slots of the highest scores, and ids of
    the blocks with the highest.
    """

    score: Callable[..., torch.Tensor]
    select: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
    maxima: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    slots: Callable[..., torch.Tensor]
    blocks: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerVerdict:
    """errors: largest relative error of a row's scores. times_s: median seconds from queries to slots."""

    problem: str | None
    heads: int
    topk: int
    errors: dict[str, float]
    times_s: dict[str, float]
    name: str = "indexer"
    error_bound: float = _BOUND

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def own_kernels() -> IndexerKernels:
    from sgl_ext.indexer.decode_step import highest_blocks, score_and_count, select_slots
    from sgl_ext.indexer.score_kernels import block_maxima_live, score_live
    from sgl_ext.indexer.select_kernels import select_highest_live

    def slots(*args: torch.Tensor, k: int, blocks: torch.Tensor | None = None, **shape: int) -> torch.Tensor:
        step = score_and_count(*args, blocks=blocks, **shape)
        req, req_to_token = args[2], args[3]
        out = torch.empty((len(req), k), dtype=torch.int32, device=req.device)
        select_slots(step, out, req, req_to_token, topk=k, ratio=shape["ratio"], blocks=blocks)
        return out

    return IndexerKernels(
        score=score_live,
        select=select_highest_live,
        maxima=block_maxima_live,
        slots=slots,
        blocks=highest_blocks,
    )


def check_indexer(
    kernels: IndexerKernels, device: torch.device, *, heads: int, topk: int, capacity: int = CAPACITY
) -> IndexerVerdict:
    """Whatever the kernels raise is the verdict, by name."""
    errors: dict[str, float] = {}
    times: dict[str, float] = {}
    try:
        problem = None
        for ratio in (1, 2):
            problem = problem or _prove(kernels, device, heads, topk, capacity, ratio, errors, times)
    except Exception as error:  # noqa: BLE001 - a kernel may raise anything; it becomes the verdict
        problem = f"raised {type(error).__name__}: {error}"
    return IndexerVerdict(problem=problem, heads=heads, topk=topk, errors=errors, times_s=times)


def require_indexer(config: Any, parallel: Any, *, device: torch.device, group: Any) -> None:
    """Raises CapabilityError on every rank where the kernels of one do not pass, naming that rank: the others
    would wait for it in the first collective otherwise. The verdict stays for the rank report. Once per
    process; blocks until all ranks have voted. group: as gather_votes takes it.
    """
    if "verdict" in _state():
        return
    heads, topk = config.index_n_heads, config.index_topk
    with torch.inference_mode():
        verdict = _state()["verdict"] = check_indexer(own_kernels(), device, heads=heads, topk=topk)
    nothing_missing = Presence(missing=None, versions={})
    told = make_verdict(verdict, nothing_missing, verdict.problem, verdict.errors, verdict.times_s)
    own = Vote(rank=parallel.tp_rank, host=socket.gethostname(), wanted=verdict.name, verdicts=(told,))
    failed = [vote for vote in gather_votes(own, group) if not vote.verdicts[0].passed]
    if failed:
        seen = "; ".join(f"{vote.verdicts[0].problem} ({vote.where})" for vote in failed)
        raise CapabilityError(
            f"The indexer's kernels must pass their check on every rank, got {seen}.",
            hint="report it with the GPU, driver and Triton's version (docs/sm12x.md)",
        )


def describe_indexer() -> dict[str, object] | None:
    """For the rank report."""
    return _state()["verdict"].as_json() if "verdict" in _state() else None


@functools.cache
def _state() -> dict[str, IndexerVerdict]:
    return {}


def _prove(
    kernels: IndexerKernels,
    device: torch.device,
    heads: int,
    topk: int,
    capacity: int,
    ratio: int,
    errors: dict[str, float],
    times: dict[str, float],
) -> str | None:
    draw = torch.Generator().manual_seed(20251130 + ratio)
    lens = torch.tensor([capacity - 7, capacity // 2 + 1, topk, 77, 1, 0], dtype=torch.int32)
    rows = len(lens)
    pages = -(-capacity // PAGE_SIZE) + 3
    keys = torch.randint(0, 256, (pages, PAGE_SIZE * _SLOT_BYTES), dtype=torch.uint8, generator=draw)
    keys[:, PAGE_SIZE * 64 :] = keys[:, PAGE_SIZE * 64 :] % 6 + 124  # the scales: not far from one
    slots = torch.stack([torch.randperm(pages * PAGE_SIZE, generator=draw)[:capacity] for _ in range(rows)])
    requests = torch.randperm(rows, generator=draw)
    req_to_token = torch.zeros((rows, capacity * ratio), dtype=torch.int32)
    req_to_token[requests] = (slots.repeat_interleave(ratio, dim=1) * ratio).to(torch.int32)
    q = torch.randn((rows, heads, KEY_DIM), generator=draw).to(torch.bfloat16)
    weights = torch.randn((rows, heads), generator=draw).to(torch.bfloat16)
    on_device = [item.to(device) for item in (q, weights, requests, req_to_token, lens, keys)]
    score = functools.partial(kernels.score, *on_device, capacity=capacity, ratio=ratio)
    take = functools.partial(kernels.slots, *on_device, capacity=capacity, ratio=ratio)
    seen = score()
    name = f"ratio {ratio}"
    problem = _wrong_scores(seen.cpu(), q, weights, slots, lens, keys, name, errors)
    if problem is None:
        problem = _wrong_choice(kernels, score, seen, on_device[4], topk)
    if problem is None:
        problem = _wrong_slots(kernels, take, seen, on_device[4], slots.to(device), topk)
    if problem is not None:
        return f"{name}: {problem}"
    if device.type == "cuda":
        times[name] = _time(lambda: take(k=topk), device)
    return None


def _wrong_scores(
    seen: torch.Tensor,
    q: torch.Tensor,
    weights: torch.Tensor,
    slots: torch.Tensor,
    lens: torch.Tensor,
    keys: torch.Tensor,
    name: str,
    errors: dict[str, float],
) -> str | None:
    table = torch.tensor((*_E2M1, *(-value for value in _E2M1)))
    errors[name] = 0.0
    for row, live in enumerate(lens.tolist()):
        if live == 0:
            continue
        own = load_keys(keys, slots[row : row + 1, :live], PAGE_SIZE, table)
        wanted = score_keys(q[row : row + 1], weights[row : row + 1], own)[0]
        error = float((seen[row, :live] - wanted).norm() / wanted.norm())
        errors[name] = max(errors[name], error) if error == error else error
        if not error <= _BOUND:
            return f"scores of {live} positions: relative error must be at most {_BOUND:g}, got {error:.3g}"
    return None


def _wrong_choice(
    kernels: IndexerKernels,
    score: Callable[..., torch.Tensor],
    seen: torch.Tensor,
    lens: torch.Tensor,
    topk: int,
) -> str | None:
    """Exactly: these kernels only compare and copy what was scored."""
    if not torch.equal(kernels.select(seen, lens, topk), select_highest(seen, lens, topk)):
        return f"the highest {topk} must be those of plain PyTorch, ties to the lower position"
    maxima, wanted = kernels.maxima(seen, lens), block_maxima(seen, lens)
    blocks = (lens + 7) // 8
    live = torch.arange(wanted.shape[1], device=lens.device) < blocks.unsqueeze(1)
    if not torch.equal(maxima.masked_fill(~live, 0), wanted.masked_fill(~live, 0)):
        return "the blocks' highest scores must be those of plain PyTorch"
    chosen = select_highest(wanted.masked_fill(~live, -torch.inf), blocks, 16)
    listed = score(blocks=chosen)
    place = chosen.clamp_min(0).long().unsqueeze(2) * 8 + torch.arange(8, device=lens.device)
    reach = ((chosen >= 0).unsqueeze(2) & (place < lens.view(-1, 1, 1))).flatten(1)
    own = seen.gather(1, place.flatten(1).clamp_max(seen.shape[1] - 1))
    if not torch.equal(listed, torch.where(reach, own, -torch.inf)):
        return "scores of listed blocks must be those of the same positions"
    return None


def _wrong_slots(
    kernels: IndexerKernels,
    take: Callable[..., torch.Tensor],
    seen: torch.Tensor,
    lens: torch.Tensor,
    slots: torch.Tensor,
    topk: int,
) -> str | None:
    """As the engine runs them: counted while scored, slots written. slots [B, capacity] by position."""
    place = torch.arange(seen.shape[1], device=lens.device)
    live = seen.masked_fill(place >= lens.unsqueeze(1), -torch.inf)

    def at(positions: torch.Tensor) -> torch.Tensor:
        of = slots.gather(1, positions.clamp_min(0).long())
        return torch.where(positions >= 0, of, -1).to(torch.int32)

    if not torch.equal(take(k=topk), at(select_highest(live, lens, topk))):
        return f"the slots of the highest {topk} must be those of plain PyTorch"
    count = -(-topk // 8) + 2
    blocks = kernels.blocks(seen, lens, count)
    maxima = block_maxima(seen, lens)
    if not torch.equal(blocks, select_highest(maxima, (lens + 7) // 8, count)):
        return "the blocks with the highest scores must be those of plain PyTorch"
    listed = torch.zeros_like(live, dtype=torch.bool)
    for row, ids in enumerate(blocks.tolist()):
        for block in ids:
            if block >= 0:
                listed[row, block * 8 : block * 8 + 8] = True
    among = select_highest(live.masked_fill(~listed, -torch.inf), lens, topk)
    if not torch.equal(take(k=topk, blocks=blocks), at(among)):
        return f"the slots of the highest {topk} of listed blocks must be those of plain PyTorch"
    return None


def _time(run: Callable[[], object], device: torch.device) -> float:
    taken = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[len(taken) // 2]

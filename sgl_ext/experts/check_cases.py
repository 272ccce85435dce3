"""Seeded weights and calls that a wrong expert kernel cannot pass: the same on every rank and machine.

A boot check has no room for the checkpoint twice, so it uses drawn weights in the model's real shape. Tokens
come in three kinds, so that each mistake shows: ordinary, with gates far beyond the clamp, and tiny.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sgl_ext.experts.candidate import ExpertCall
from sgl_ext.experts.expert_weights import ONE_E8M0, ExpertShape, PackedExperts

_SCALE_SPREAD = 3  # powers of two on either side, so that a scale of another row or group is far off
DECODE_TOKENS = 6  # a verify step of one request: draft block 5 and the token before it
BATCH_TOKENS = 48
PREFILL_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    call: ExpertCall
    must_be_zero: bool = False


def draw_packed(shape: ExpertShape, device: torch.device, *, seed: int = 20251130) -> PackedExperts:
    """Codes are uniform; scales keep hidden values near one whatever the widths are."""
    draw = torch.Generator().manual_seed(seed)
    w13 = _codes((shape.num_experts, 2 * shape.width, shape.hidden // 2), draw)
    w2 = _codes((shape.num_experts, shape.hidden, shape.width // 2), draw)
    return PackedExperts(
        w13=w13.to(device),
        w13_scale=_scales((shape.num_experts, 2 * shape.width, shape.hidden // 32), shape.hidden, draw).to(
            device
        ),
        w2=w2.to(device),
        w2_scale=_scales((shape.num_experts, shape.hidden, shape.width // 32), shape.width, draw).to(device),
    )


def zero_packed(shape: ExpertShape, device: torch.device) -> PackedExperts:
    """A shard of padding only: zero weights, scales 1.0."""
    zeros = draw_packed(shape, device)
    return PackedExperts(
        w13=torch.zeros_like(zeros.w13),
        w13_scale=torch.full_like(zeros.w13_scale, ONE_E8M0),
        w2=torch.zeros_like(zeros.w2),
        w2_scale=torch.full_like(zeros.w2_scale, ONE_E8M0),
    )


def draw_call(
    shape: ExpertShape,
    tokens: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    limit: float | None,
    seed: int,
) -> ExpertCall:
    """A third of the tokens each ordinary, 12 times larger (clamped) and 1/64. With experts on other ranks a
    token's list has -1 for them, and may have nothing else.
    """
    draw = torch.Generator().manual_seed(seed)
    gain = torch.tensor([1.0, 12.0, 1 / 64])[torch.arange(tokens) % 3].unsqueeze(1)
    x = torch.randn((tokens, shape.hidden), generator=draw) * gain
    scores = torch.rand((tokens, shape.all_experts), generator=draw)
    ids = scores.topk(min(shape.top_k, shape.all_experts), dim=1).indices - shape.first_expert
    weights = torch.rand(ids.shape, generator=draw) + 0.1
    here = (ids >= 0) & (ids < shape.num_experts)
    return ExpertCall(
        x=x.to(device, dtype),
        topk_ids=torch.where(here, ids, -1).to(torch.int32).to(device),
        topk_weights=weights.to(device),
        limit=limit,
    )


def draw_cases(
    shape: ExpertShape,
    sizes: tuple[int, ...],
    *,
    dtype: torch.dtype,
    device: torch.device,
    limit: float | None,
) -> tuple[Case, ...]:
    """One case a size, then a batch whose tokens all choose the same experts, then weights of zero."""
    cases = [
        Case(
            name=f"{size} tokens",
            call=draw_call(shape, size, dtype=dtype, device=device, limit=limit, seed=size),
        )
        for size in sizes
    ]
    same = draw_call(shape, sizes[0], dtype=dtype, device=device, limit=limit, seed=77)
    same.topk_ids.copy_(same.topk_ids[:1].expand_as(same.topk_ids))
    cases.append(Case(name="the same experts for all", call=same))
    none = draw_call(shape, sizes[0], dtype=dtype, device=device, limit=limit, seed=78)
    none.topk_weights.zero_()
    cases.append(Case(name="routing weights of zero", call=none, must_be_zero=True))
    return tuple(cases)


def _codes(size: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)


def _scales(size: tuple[int, ...], reduced: int, draw: torch.Generator) -> torch.Tensor:
    """A code's root mean square is 2.8, a scale's with its spread about 4: a sum comes out near 1."""
    centre = ONE_E8M0 - round(torch.log2(torch.tensor(11.0 * reduced**0.5)).item())
    spread = torch.randint(-_SCALE_SPREAD, _SCALE_SPREAD + 1, size, dtype=torch.int16, generator=draw)
    return (spread + centre).to(torch.uint8)

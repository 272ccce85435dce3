"""What every way of running MXFP4 experts has to offer, so that they can be checked and timed alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sgl_ext.experts.expert_weights import ExpertShape, PackedExperts


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where the rank runs. capability is CUDA's, None on a CPU."""

    kind: str
    capability: tuple[int, int] | None

    def __str__(self) -> str:
        return self.kind if self.capability is None else f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Whether a candidate can be tried here; missing says why not. versions are of the packages it needs."""

    missing: str | None
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCall:
    """One call: x [T, H]; topk_ids [T, K] int32, local to this rank, -1 where the expert is elsewhere;
    topk_weights [T, K] fp32 with the routed scaling in them. The result is [T, H] in x's type: this rank's
    part of the routed sum.
    """

    x: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    limit: float | None


class Candidate(Protocol):
    """One backend.

    error_bound: largest relative error of a token (2-norm, against the reference) that its rounding explains.
    act_bits: bits of an activation inside its products, which is where the bound comes from.
    """

    name: str
    error_bound: float
    act_bits: int

    def probe(self, device: Device, shape: ExpertShape) -> Presence: ...

    def prepare(self, packed: PackedExperts, shape: ExpertShape, limit: float | None) -> Any:
        """Repacked weights. May consume packed."""
        ...

    def run(self, prepared: Any, call: ExpertCall) -> torch.Tensor: ...

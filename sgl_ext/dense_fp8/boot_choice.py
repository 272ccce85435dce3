"""Chooses the kernel of the FP8 linear layers on sm_12x, once per process, as the expert backend is chosen:
every candidate is compared with plain PyTorch on the rank's shapes and timed, and the ranks decide together.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sgl_ext.dense_fp8.linear_cases import (
    BATCH_TOKENS,
    DECODE_TOKENS,
    PREFILL_TOKENS,
    BlockWeight,
    LinearShape,
    draw_rows,
    draw_weight,
    rank_shapes,
    reference,
    zero_weight,
)
from sgl_ext.dense_fp8.stock_linear import stock_candidates, tell_sglang
from sgl_ext.errors import DenseBackendError
from sgl_ext.experts.candidate import Device, Presence
from sgl_ext.experts.choose import AUTO, Subject, Vote, choose_backend
from sgl_ext.experts.gather_votes import gather_votes
from sgl_ext.experts.self_check import Verdict, make_verdict, relative_error, time_call

DENSE = Subject(
    name="FP8 linear backend",
    kind="FP8 linear backend",
    key="server.fp8_gemm_backend",
    page="docs/sm12x.md",
    error=DenseBackendError,
)
_QUANT = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}


class LinearCandidate(Protocol):
    """One kernel. error_bound: largest relative error of a token that rounding its inputs explains."""

    @property
    def name(self) -> str: ...

    @property
    def error_bound(self) -> float: ...

    def probe(self, device: Device) -> Presence: ...

    def prepare(self, weight: BlockWeight, shape: LinearShape) -> Any: ...

    def run(self, prepared: Any, rows: torch.Tensor) -> torch.Tensor: ...


def check_linear(
    candidate: LinearCandidate,
    here: Device,
    shapes: Sequence[LinearShape],
    sizes: Sequence[int],
    device: torch.device,
) -> Verdict:
    """Whatever a candidate raises is its problem, by name. times_s: of all shapes together, by tokens."""
    presence = candidate.probe(here)
    errors: dict[str, float] = {}
    times: dict[str, float] = {}
    problem = presence.missing
    if problem is None:
        try:
            for shape in shapes:
                problem = problem or _prove(candidate, shape, sizes, device, errors, times)
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; it becomes the verdict
            problem = f"raised {type(error).__name__}: {error}"
    return make_verdict(candidate, presence, problem, errors, {} if problem else times)


def _prove(
    candidate: LinearCandidate,
    shape: LinearShape,
    sizes: Sequence[int],
    device: torch.device,
    errors: dict[str, float],
    times: dict[str, float],
) -> str | None:
    weight = draw_weight(shape, device)
    prepared = candidate.prepare(weight, shape)
    for tokens in sizes:
        rows = draw_rows(shape, tokens, device, torch.bfloat16)
        seen, wanted = candidate.run(prepared, rows).clone(), reference(weight, rows)
        where = f"{shape.name}, {tokens} tokens"
        if seen.shape != wanted.shape or seen.dtype != wanted.dtype:
            must = f"{tuple(wanted.shape)} {wanted.dtype}"
            return f"{where}: must give {must}, got {tuple(seen.shape)} {seen.dtype}"
        error = errors[where] = relative_error(seen, wanted) if seen.isfinite().all() else float("inf")
        if not error <= candidate.error_bound:
            return f"{where}: relative error must be at most {candidate.error_bound:g}, got {error:.3g}"
        if not torch.equal(seen, candidate.run(prepared, rows)):
            return f"{where}: gives other bits when it is called again"
        call = functools.partial(candidate.run, prepared, rows)
        times[f"{tokens} tokens"] = times.get(f"{tokens} tokens", 0.0) + time_call(call, device)
    padding = candidate.run(candidate.prepare(zero_weight(shape, device), shape), rows)
    return f"{shape.name}: zero weights must give exact zeros" if padding.any() else None


@functools.cache
def _state() -> dict[str, object]:
    return {}


def describe_dense() -> dict[str, object]:
    """For the rank report: the choice, or that none was to be made."""
    return dict(_state())


def choose_for_rank(
    config: Any, parallel: Any, *, device: torch.device, group: Any, wanted: str, quant: Any
) -> str | None:
    """The backend that all ranks take from now on; None where SGLang's own stands: another GPU than sm_12x,
    other blocks than 32 x 32, or a backend that the plugin has no candidate for. Raises DenseBackendError.
    """
    here = Device(
        kind=device.type,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
    )
    candidates = stock_candidates(quant)
    known = wanted in (AUTO, *(candidate.name for candidate in candidates))
    if here.capability is None or here.capability[0] != 12 or not _is_v41(quant) or not known:
        return None
    with torch.inference_mode():
        name = choose_together(candidates, here, config, parallel, device=device, group=group, wanted=wanted)
    tell_sglang(name)
    torch.cuda.empty_cache()
    return name


def choose_together(
    candidates: Sequence[LinearCandidate],
    here: Device,
    config: Any,
    parallel: Any,
    *,
    device: torch.device,
    group: Any,
    wanted: str,
) -> str:
    shapes = rank_shapes(config, parallel.tp_size)
    sizes = (DECODE_TOKENS, BATCH_TOKENS) + ((PREFILL_TOKENS,) if device.type == "cuda" else ())
    asked = [candidate for candidate in candidates if wanted in (AUTO, candidate.name)]
    verdicts = tuple(check_linear(candidate, here, shapes, sizes, device) for candidate in asked)
    own = Vote(rank=parallel.tp_rank, host=socket.gethostname(), wanted=wanted, verdicts=verdicts)
    name = choose_backend(gather_votes(own, group), DENSE)
    _state().update(
        chosen=name,
        wanted=wanted,
        shapes={shape.name: [shape.outputs, shape.inputs] for shape in shapes},
        verdicts=[verdict.as_json() for verdict in verdicts],
    )
    return name


def _is_v41(quant: Any) -> bool:
    return isinstance(quant, dict) and all(quant.get(key) == value for key, value in _QUANT.items())

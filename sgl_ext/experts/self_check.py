"""One candidate on one rank: is it there, right on the model's shapes, the same each time, and how fast."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sgl_ext.experts.candidate import Candidate, Device, Presence
from sgl_ext.experts.check_cases import Case, draw_packed, zero_packed
from sgl_ext.experts.expert_weights import ExpertShape
from sgl_ext.experts.reference import Reference

_REPEATS_CPU, _REPEATS_GPU = 3, 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A candidate on this rank. problem: why it must not be used, None where it passed.

    errors: case -> largest relative error of a token. times_s: case -> median seconds of a call.
    """

    name: str
    present: bool
    problem: str | None
    error_bound: float
    errors: dict[str, float]
    times_s: dict[str, float]
    versions: dict[str, str]

    @property
    def passed(self) -> bool:
        return self.problem is None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The cases with the reference's outputs, computed once for all candidates."""

    shape: ExpertShape
    cases: tuple[Case, ...]
    outputs: tuple[torch.Tensor, ...]
    limit: float | None
    device: torch.device


def expect(shape: ExpertShape, cases: Sequence[Case], limit: float | None, device: torch.device) -> Expected:
    packed, reference = draw_packed(shape, device), Reference()
    return Expected(
        shape=shape,
        cases=tuple(cases),
        outputs=tuple(reference.run(packed, case.call) for case in cases),
        limit=limit,
        device=device,
    )


def check_candidate(
    candidate: Candidate, device: Device, expected: Expected, *, must_repeat: bool
) -> Verdict:
    """Whatever a candidate raises is its problem, by name; nothing is hidden and no other is tried for it."""
    presence = candidate.probe(device, expected.shape)
    errors: dict[str, float] = {}
    times: dict[str, float] = {}
    problem = presence.missing
    if problem is None:
        try:
            problem = _prove(candidate, expected, errors, times, must_repeat)
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; it becomes the verdict
            problem = f"raised {type(error).__name__}: {error}"
    return make_verdict(candidate, presence, problem, errors, times)


def make_verdict(
    candidate: Any,
    presence: Presence,
    problem: str | None,
    errors: dict[str, float],
    times_s: dict[str, float],
) -> Verdict:
    """candidate: anything with a name and an error_bound."""
    return Verdict(
        name=candidate.name,
        present=presence.missing is None,
        problem=problem,
        error_bound=candidate.error_bound,
        errors=errors,
        times_s=times_s,
        versions=presence.versions,
    )


def judge(
    candidate: Any, presence: Presence, prove: Callable[[dict[str, float], dict[str, float]], str | None]
) -> Verdict:
    """prove notes errors and times and says what is wrong; whatever it raises is the verdict, by name. Times
    of a candidate that does not pass are dropped.
    """
    errors: dict[str, float] = {}
    times: dict[str, float] = {}
    problem = presence.missing
    if problem is None:
        try:
            problem = prove(errors, times)
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; it becomes the verdict
            problem = f"raised {type(error).__name__}: {error}"
    return make_verdict(candidate, presence, problem, errors, {} if problem else times)


def not_asked_for(candidate: Candidate, wanted: str) -> Verdict:
    """Checking a backend that cannot be chosen costs minutes where its kernels are compiled first."""
    reason = f"not checked, since {wanted} is asked for"
    return make_verdict(candidate, Presence(missing=reason, versions={}), reason, {}, {})


def _prove(
    candidate: Candidate,
    expected: Expected,
    errors: dict[str, float],
    times: dict[str, float],
    must_repeat: bool,
) -> str | None:
    shape, limit = expected.shape, expected.limit
    prepared = candidate.prepare(draw_packed(shape, expected.device), shape, limit)
    for case, wanted in zip(expected.cases, expected.outputs, strict=True):
        seen = candidate.run(prepared, case.call).clone()
        problem = find_difference(seen, wanted, case, candidate.error_bound, errors)
        if problem is None and must_repeat and not torch.equal(seen, candidate.run(prepared, case.call)):
            problem = "gives other bits when it is called again"
        if problem is not None:
            return f"{case.name}: {problem}"
    problem = _prove_zero_shard(candidate, expected)
    if problem is None:
        for case in expected.cases:
            if case.name.endswith(" tokens"):
                call = functools.partial(candidate.run, prepared, case.call)
                times[case.name] = time_call(call, expected.device)
    return problem


def _prove_zero_shard(candidate: Candidate, expected: Expected) -> str | None:
    """A shard of padding must add exact zeros."""
    shape = expected.shape
    prepared = candidate.prepare(zero_packed(shape, expected.device), shape, expected.limit)
    seen = candidate.run(prepared, expected.cases[0].call)
    return (
        None if not seen.any() else f"zero weights: must give exact zeros, got up to {seen.abs().max():.3g}"
    )


def find_difference(
    seen: torch.Tensor, wanted: torch.Tensor, case: Case, bound: float, errors: dict[str, float]
) -> str | None:
    """Notes the error of the worst token and says what is wrong with it, or None."""
    if seen.shape != wanted.shape or seen.dtype != wanted.dtype:
        return f"must give {tuple(wanted.shape)} {wanted.dtype}, got {tuple(seen.shape)} {seen.dtype}"
    if not seen.isfinite().all():
        return "gives values that are not finite"
    if case.must_be_zero:
        return None if not seen.any() else f"must give exact zeros, got up to {seen.abs().max():.3g}"
    error = relative_error(seen, wanted)
    errors[case.name] = error
    if error > bound:
        return f"relative error must be at most {bound:g}, got {error:.3g}"
    return None


def relative_error(seen: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst token's |seen - wanted| / |wanted|; a token without local experts must be exactly zero."""
    difference = (seen.float() - wanted.float()).norm(dim=1)
    size = wanted.float().norm(dim=1)
    ratio = torch.where(
        size > 0, difference / size.clamp_min(1e-30), torch.where(difference > 0, math.inf, 0.0)
    )
    return float(ratio.max())


def time_call(call: Callable[[], object], device: torch.device) -> float:
    """Median seconds, after one call that warms caches."""
    is_cuda = device.type == "cuda"
    call()
    taken = []
    for _ in range(_REPEATS_GPU if is_cuda else _REPEATS_CPU):
        if is_cuda:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if is_cuda:
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 2]

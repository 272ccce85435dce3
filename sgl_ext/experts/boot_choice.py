"""Chooses this rank's expert backend, once per process: the ranks can talk, the model is not built yet."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sgl_ext.errors import SettingError
from sgl_ext.experts.b12x import B12x
from sgl_ext.experts.candidate import Candidate, Device
from sgl_ext.experts.check_cases import BATCH_TOKENS, DECODE_TOKENS, PREFILL_TOKENS, draw_cases
from sgl_ext.experts.choose import AUTO, Vote, choose_backend
from sgl_ext.experts.dequantised import Dequantised
from sgl_ext.experts.expert_weights import ExpertShape
from sgl_ext.experts.flashinfer_mxfp4 import FlashinferMxfp4
from sgl_ext.experts.gather_votes import gather_votes
from sgl_ext.experts.marlin import Marlin
from sgl_ext.experts.reference import Reference
from sgl_ext.experts.self_check import check_candidate, expect, not_asked_for

BACKEND_VARIABLE = "SPARKCTL_EXPERT_BACKEND"
MAY_VARY_VARIABLE = "SPARKCTL_EXPERTS_MAY_VARY"
_NAMES = ("flashinfer_mxfp4", "marlin", "b12x", "dequantised", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and every rank's votes: this goes into the rank report."""

    candidate: Candidate
    votes: tuple[Vote, ...]
    own: Vote
    shape: ExpertShape
    limit: float | None

    def as_json(self) -> dict[str, object]:
        return {
            "chosen": self.candidate.name,
            "wanted": self.own.wanted,
            "shape": {
                "experts": self.shape.num_experts,
                "hidden": self.shape.hidden,
                "width": self.shape.width,
            },
            "verdicts": [verdict.as_json() for verdict in self.own.verdicts],
            "slowest_s": {
                verdict.name: {
                    size: max(
                        named.times_s[size] for vote in self.votes if (named := vote.named(verdict.name))
                    )
                    for size in verdict.times_s
                }
                for verdict in self.own.verdicts
            },
        }


@functools.lru_cache(maxsize=1)
def _state() -> dict[str, Choice]:
    return {}


def chosen() -> Choice | None:
    """This process's choice; None where the engine keeps SGLang's own."""
    return _state().get("choice")


def wanted_backend(environment: Mapping[str, str], runner_backend: str) -> str | None:
    """The backend asked for: our variable, else SGLang's option, else auto. None where SGLang's option names
    one that the plugin has no candidate for; the engine then runs it unchecked, as the operator asked.
    """
    name = environment.get(BACKEND_VARIABLE)
    if name is not None and name not in (*_NAMES, AUTO):
        raise SettingError(
            f"{BACKEND_VARIABLE} must be one of {', '.join((*_NAMES, AUTO))}, got {name!r} (environment).",
            hint=f"unset {BACKEND_VARIABLE}",
        )
    if name is not None and runner_backend not in (AUTO, name):
        raise SettingError(
            f"{BACKEND_VARIABLE} and --moe-runner-backend must name one backend, got {name!r} and "
            f"{runner_backend!r}.",
            hint="leave one of them out",
        )
    if name is not None:
        return name
    return runner_backend if runner_backend in (*_NAMES, AUTO) else None


def may_vary(environment: Mapping[str, str]) -> bool:
    """Whether a backend may give other bits for the same call; not unless it is asked for."""
    value = environment.get(MAY_VARY_VARIABLE, "0")
    if value not in ("0", "1"):
        raise SettingError(
            f"{MAY_VARY_VARIABLE} must be 0 or 1, got {value!r} (environment).",
            hint=f"unset {MAY_VARY_VARIABLE}",
        )
    return value == "1"


def list_candidates(device: Device, dtype: torch.dtype) -> tuple[Candidate, ...]:
    return (FlashinferMxfp4(device), Marlin(), B12x(), Dequantised(dtype), Reference())


def choose_for_model(
    config: Any, parallel: Any, *, device: torch.device, dtype: torch.dtype, group: Any, wanted: str
) -> Choice:
    """Checks and times every candidate on the model's shapes, asks the other ranks, and keeps the choice.

    config: the text config. parallel: SGLang's parallel sizes and ranks. Raises ExpertBackendError. Blocks
    until every rank has voted.
    """
    shape = rank_shape(config, parallel)
    limit = getattr(config, "swiglu_limit", None)
    here = Device(
        kind=device.type,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
    )
    sizes = (DECODE_TOKENS, BATCH_TOKENS) + ((PREFILL_TOKENS,) if device.type == "cuda" else ())
    candidates = list_candidates(here, dtype)
    with torch.inference_mode():
        cases = draw_cases(shape, sizes, dtype=dtype, device=device, limit=limit)
        expected = expect(shape, cases, limit, device)
        verdicts = tuple(
            check_candidate(candidate, here, expected, must_repeat=not may_vary(os.environ))
            if wanted in (AUTO, candidate.name)
            else not_asked_for(candidate, wanted)
            for candidate in candidates
        )
    own = Vote(rank=parallel.tp_rank, host=socket.gethostname(), wanted=wanted, verdicts=verdicts)
    votes = gather_votes(own, group)
    name = choose_backend(votes)
    candidate = next(item for item in candidates if item.name == name)
    choice = Choice(candidate=candidate, votes=votes, own=own, shape=shape, limit=limit)
    _state()["choice"] = choice
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the drawn weights make room for the model
    return choice


def rank_shape(config: Any, parallel: Any) -> ExpertShape:
    """This rank's experts: n_routed_experts over the expert groups, their width over the ranks of a group."""
    experts = config.n_routed_experts // parallel.moe_ep_size
    return ExpertShape(
        num_experts=experts,
        hidden=config.hidden_size,
        width=config.moe_intermediate_size // parallel.moe_tp_size,
        top_k=config.num_experts_per_tok,
        first_expert=parallel.moe_ep_rank * experts,
        total_experts=config.n_routed_experts,
    )

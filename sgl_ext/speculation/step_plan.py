"""What the controller decides about a step, in the order of the engine:
draft or not, then how much to verify."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sgl_ext.speculation.width_choice import Choice


class StepKind(enum.StrEnum):
    """Why a step drafts, or why it does not."""

    PAYS = "pays"
    PROBE = "probe"
    FIXED = "fixed"  # only because a request asked for a width
    UNTUNED = "untuned"  # no cost table: the whole block, as SGLang does
    OFF = "off"  # every request asked for none
    NOT_PAYING = "not_paying"
    REGRET = "regret"  # it should pay, but a request has no regret left
    SERVER_REGRET = "server_regret"  # it should pay, but the server has no regret left
    BATCH_TOO_LARGE = "batch_too_large"  # the cost table does not have it

    @property
    def drafts(self) -> bool:
        return self in _DRAFTING


_DRAFTING = frozenset((StepKind.PAYS, StepKind.PROBE, StepKind.FIXED, StepKind.UNTUNED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """payers: positions in the batch of the requests that stand for the step's worst case. max_cost_ns: what
    it may cost at most; base_ns: what it costs without the controller (plain, or the fixed widths asked
    for)."""

    payers: tuple[int, ...]
    base_ns: int
    plain_ns: int
    max_cost_ns: int
    server_is_short: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """Decided before the draft. choice: what would be verified without knowing the draft's confidence."""

    request_ids: tuple[str, ...]
    kind: StepKind
    choice: Choice
    plain: Choice
    budget: Budget | None

    @property
    def drafts(self) -> bool:
        return self.kind.drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """Decided after the draft. widths: draft tokens to verify by request; graph_width: of the whole batch
    with equal widths; worst and request_worst are reserved in the accounts until observe()."""

    draft: DraftPlan
    widths: tuple[int, ...]
    graph_width: int
    cost_ns: int
    trusted: bool
    levels: tuple[tuple[int, ...] | None, ...] | None
    worst: int
    request_worst: int

"""Widths where nothing is to be decided: no cost table, or no request that leaves the width to the server."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_ext.speculation.request_option import SpecMode, SpecOption
from sgl_ext.speculation.step_plan import DraftPlan, StepKind, VerifyPlan
from sgl_ext.speculation.width_choice import Choice


def plan_asked_widths(ids: Sequence[str], options: Sequence[SpecOption], block: int) -> VerifyPlan:
    """Each request's own width; the whole block for `auto`, which is what SGLang does by itself.

    Costs are unknown, so they are 1: nobody pays for these steps.
    """
    widths = tuple(block if option.mode is SpecMode.AUTO else option.width for option in options)
    plain = Choice(widths=(0,) * len(widths), tokens=0, cost_ns=1)
    if any(option.mode is SpecMode.AUTO for option in options):
        kind = StepKind.UNTUNED
    elif any(widths) or any(option.mode is SpecMode.DRAFT_ONLY for option in options):
        kind = StepKind.FIXED
    else:
        kind = StepKind.OFF
    choice = Choice(widths=widths, tokens=0, cost_ns=1)
    draft = DraftPlan(request_ids=tuple(ids), kind=kind, choice=choice, plain=plain, budget=None)
    return VerifyPlan(
        draft=draft,
        widths=widths,
        graph_width=max(widths),
        cost_ns=1,
        trusted=False,
        levels=None,
        worst=0,
        request_worst=0,
    )

"""An adversary that looks at the controller before it decides what the draft gets right.

Where the controller verifies nothing, the whole draft would have been right; where it verifies w tokens,
none is, so that the step costs its worst case. No controller without a coin can be close to the best fixed
width here: that width is right wherever this one looked away. It must still not lose against no speculation,
and its regret must hold.
"""

from __future__ import annotations

from sgl_ext.speculation.acceptance_trace import RequestTrace, Trace
from sgl_ext.speculation.controller import ControllerSettings, SpeculationController
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.request_option import AUTO


def lure(table: CostTable, num_tokens: int, settings: ControllerSettings, *, bait: int = 0) -> Trace:
    """The trace of one request of num_tokens against a fresh controller. bait: steps that are let succeed
    before each row of failures as long, so that gains are banked and trust is won first."""
    controller = SpeculationController(table, settings)
    controller.admit("0", AUTO)
    runs: list[int] = []
    drafted = 0
    while len(runs) < num_tokens:
        plan = controller.plan_verify(controller.plan_draft(["0"]))
        width = plan.widths[0]
        is_fed = width > 0 and bait > 0 and drafted // bait % 2 == 0
        drafted += width > 0
        accepted = width if is_fed else 0
        controller.observe(plan, [accepted])
        runs.append(table.block if not width or is_fed else 0)
        runs += [0] * accepted
    return Trace(
        name=f"lure-{bait}", block=table.block, requests=(RequestTrace(runs=tuple(runs[:num_tokens])),)
    )

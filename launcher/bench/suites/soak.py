"""soak: hours of mixed requests; failures are counted, memory and clocks of the nodes are watched."""

from __future__ import annotations

import math

from launcher.bench.prompts import decode_body
from launcher.bench.suites.suite import SuiteInputs, SuitePlan
from launcher.bench.wave import Ask, Wave

WINDOW_S = 60.0
WARM_UP_S = 5.0


def plan_soak(inputs: SuiteInputs) -> SuitePlan:
    """Windows of a minute: each is one round, and what a resumed run does not repeat."""
    settings = inputs.settings
    window_s = min(WINDOW_S, settings.soak_s)
    waves = []
    for round_idx in range(math.ceil(settings.soak_s / window_s) + 1):
        asks = tuple(
            Ask(
                name=f"{kind}{number}",
                body=decode_body(
                    kind, number, f"{settings.seed}/soak/{round_idx}/{number}", **inputs.parameters()
                ),
            )
            for number in range(40)
            for kind in settings.kinds
        )
        waves.append(
            Wave(
                suite="soak",
                case="mixed kinds",
                concurrency=settings.soak_concurrency,
                round=round_idx,
                asks=asks,
                warm_up=round_idx == 0,
                workers=settings.soak_concurrency,
                repeat_for_s=min(WARM_UP_S, window_s) if round_idx == 0 else window_s,
            )
        )
    return SuitePlan(waves=tuple(waves))

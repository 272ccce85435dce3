"""decode: how fast answers of five kinds are generated, for one stream to many."""

from __future__ import annotations

from launcher.bench.prompts import decode_body
from launcher.bench.suites.suite import SuiteInputs, SuitePlan
from launcher.bench.wave import Ask, Wave


def plan_decode(inputs: SuiteInputs) -> SuitePlan:
    """All streams of a wave start together; every round has prompts of its own.

    Each round goes over all cells before the next begins: a disturbance of some seconds then hits one round
    of several cells, which their medians leave out, and not all rounds of one.
    """
    settings = inputs.settings
    waves: list[Wave] = []
    for round_idx in inputs.rounds:
        for kind in settings.kinds:
            waves += [_wave(inputs, kind, concurrency, round_idx) for concurrency in settings.concurrency]
    return SuitePlan(waves=tuple(waves))


def _wave(inputs: SuiteInputs, kind: str, concurrency: int, round_idx: int) -> Wave:
    seed = f"{inputs.settings.seed}/{concurrency}/{round_idx}"
    asks = tuple(
        Ask(
            name=f"s{stream}",
            body=decode_body(kind, round_idx * concurrency + stream, seed, **inputs.parameters()),
        )
        for stream in range(concurrency)
    )
    return Wave(
        suite="decode", case=kind, concurrency=concurrency, round=round_idx, asks=asks,
        warm_up=round_idx == 0,
    )  # fmt: skip

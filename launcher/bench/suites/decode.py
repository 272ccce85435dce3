"""decode: how fast answers of five kinds are generated, for one stream to many."""

from __future__ import annotations

from launcher.bench.prompts import decode_body
from launcher.bench.suites.suite import SuiteInputs, SuitePlan
from launcher.bench.wave import Ask, Wave


def plan_decode(inputs: SuiteInputs) -> SuitePlan:
    """All streams of a wave start together; every round has prompts of its own."""
    settings = inputs.settings
    waves = []
    for kind in settings.kinds:
        for concurrency in settings.concurrency:
            for round_idx in inputs.rounds:
                seed = f"{settings.seed}/{concurrency}/{round_idx}"
                asks = tuple(
                    Ask(
                        name=f"s{stream}",
                        body=decode_body(kind, round_idx * concurrency + stream, seed, **inputs.parameters()),
                    )
                    for stream in range(concurrency)
                )
                waves.append(
                    Wave(
                        suite="decode",
                        case=kind,
                        concurrency=concurrency,
                        round=round_idx,
                        asks=asks,
                        warm_up=round_idx == 0,
                    )
                )
    return SuitePlan(waves=tuple(waves))

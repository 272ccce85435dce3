"""Settings -> every wave of the run, in order, for each protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from launcher.bench.endpoint import Endpoint, ServerFacts
from launcher.bench.errors import BenchRefused
from launcher.bench.protocols.lil import plan_lil
from launcher.bench.protocols.sparkdash import plan_sparkdash
from launcher.bench.settings import BenchSettings
from launcher.bench.suites.decode import plan_decode
from launcher.bench.suites.mixed import plan_mixed
from launcher.bench.suites.needle import plan_needle
from launcher.bench.suites.prefill import plan_prefill
from launcher.bench.suites.prefix import plan_prefix
from launcher.bench.suites.soak import plan_soak
from launcher.bench.suites.suite import SuiteInputs, SuitePlan
from launcher.bench.text_scale import TextScale, measure_text_scale

_SUITES: dict[str, Callable[[SuiteInputs], SuitePlan]] = {
    "decode": plan_decode,
    "prefill": plan_prefill,
    "mixed": plan_mixed,
    "prefix": plan_prefix,
    "needle": plan_needle,
    "soak": plan_soak,
}


def plan_waves(
    settings: BenchSettings, endpoint: Endpoint, facts: ServerFacts, tell: Callable[[str], None]
) -> SuitePlan:
    """Raises BenchRefused when nothing is left to measure."""

    @cache
    def scale() -> TextScale:
        tell("first the server counts the tokens of a few passages")
        return measure_text_scale(endpoint, facts.context_tokens, settings.longest_tokens, settings.seed)

    inputs = SuiteInputs(settings=settings, context_tokens=facts.context_tokens, scale=scale)
    if settings.protocol == "sparkdash":
        plans = [plan_sparkdash(inputs)]
    elif settings.protocol == "lil":
        plans = [plan_lil(inputs)]
    else:
        plans = [_SUITES[name](inputs) for name in settings.suites]
    waves = tuple(wave for plan in plans for wave in plan.waves)
    notes = tuple(note for plan in plans for note in plan.notes)
    if not waves:
        raise BenchRefused(
            "something must be left to measure, got nothing: " + ("; ".join(notes) or "no suite"),
            hint="give lengths that the server's context holds, for instance --prefill-tokens 1024,2048",
        )
    return SuitePlan(waves=waves, notes=notes)

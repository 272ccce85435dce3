"""prefix: the same long prompt cold, again warm, and after a restart of the server."""

from __future__ import annotations

from launcher.bench.suites.prefill import ANSWER_TOKENS, QUESTION
from launcher.bench.suites.suite import SuiteInputs, SuitePlan, left_out
from launcher.bench.text_scale import fits
from launcher.bench.wave import Ask, Wave, user_message


def plan_prefix(inputs: SuiteInputs) -> SuitePlan:
    """Cold and warm alternate within a round. The prompts depend on the seed alone, so a run that is resumed
    with after_restart sends the very same ones again.
    """
    settings = inputs.settings
    lengths = [n for n in settings.prefix_tokens if fits(n, ANSWER_TOKENS, inputs.context_tokens)]
    waves = []
    for num_tokens in lengths:
        asks = {}
        for round_idx in inputs.rounds:
            text = inputs.scale().text(num_tokens, f"{settings.seed}/prefix/{num_tokens}/{round_idx}")
            body = user_message(text + QUESTION, **inputs.parameters(max_tokens=ANSWER_TOKENS))
            asks[round_idx] = (Ask(name="p", body=body, may_be_short=True),)
            for case in ("cold", "warm"):
                waves.append(_wave(f"{case} {num_tokens}", round_idx, asks[round_idx]))
        if settings.after_restart:
            waves += [_wave(f"after restart {num_tokens}", idx, asks[idx]) for idx in inputs.rounds]
    missing = [n for n in settings.prefix_tokens if n not in lengths]
    notes = left_out("prefix", missing, inputs.context_tokens)
    if not settings.after_restart:
        notes += (
            "prefix: after a restart not measured; restart the server, then"
            " sparkctl bench --resume DIR --after-restart",
        )
    return SuitePlan(waves=tuple(waves), notes=notes)


def _wave(case: str, round_idx: int, asks: tuple[Ask, ...]) -> Wave:
    return Wave(
        suite="prefix",
        case=case,
        concurrency=1,
        round=round_idx,
        asks=asks,
        warm_up=round_idx == 0,
        is_cold=case.startswith("cold"),
        is_warm=case.startswith("warm"),
    )

"""prefill: time to the first token over the length of a cold, unique, real text."""

from __future__ import annotations

from launcher.bench.suites.suite import SuiteInputs, SuitePlan, left_out
from launcher.bench.text_scale import fits
from launcher.bench.wave import Ask, Wave, user_message

ANSWER_TOKENS = 8
QUESTION = "\n\nSummarize the text above in one sentence."


def plan_prefill(inputs: SuiteInputs) -> SuitePlan:
    """One request at a time; lengths beyond the server's context are left out and said."""
    settings = inputs.settings
    lengths = [n for n in settings.prefill_tokens if fits(n, ANSWER_TOKENS, inputs.context_tokens)]
    waves = []
    for num_tokens in lengths:
        for round_idx in inputs.rounds:
            text = inputs.scale().text(num_tokens, f"{settings.seed}/prefill/{num_tokens}/{round_idx}")
            body = user_message(text + QUESTION, **inputs.parameters(max_tokens=ANSWER_TOKENS))
            waves.append(
                Wave(
                    suite="prefill",
                    case=f"{num_tokens} tokens",
                    concurrency=1,
                    round=round_idx,
                    asks=(Ask(name="p", body=body, may_be_short=True),),
                    warm_up=round_idx == 0,
                    is_cold=True,
                )
            )
    missing = [n for n in settings.prefill_tokens if n not in lengths]
    return SuitePlan(waves=tuple(waves), notes=left_out("prefill", missing, inputs.context_tokens))

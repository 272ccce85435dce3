"""needle: does the model find one line in a long real text? Counted, with the length that was really read."""

from __future__ import annotations

import random

from launcher.bench.suites.suite import SuiteInputs, SuitePlan, left_out
from launcher.bench.text_scale import fits
from launcher.bench.wave import Ask, Wave, user_message

DEPTHS = (0.1, 0.5, 0.9)
ANSWER_TOKENS = 64
QUESTION = "\n\nWhich access code of the archive does the text above name? Answer with the code only."


def plan_needle(inputs: SuiteInputs) -> SuitePlan:
    """Another code and another text for each depth and round."""
    settings = inputs.settings
    lengths = [n for n in settings.needle_tokens if fits(n + 96, ANSWER_TOKENS, inputs.context_tokens)]
    waves = []
    for num_tokens in lengths:
        for depth in DEPTHS:
            for round_idx in inputs.rounds:
                seed = f"{settings.seed}/needle/{num_tokens}/{depth}/{round_idx}"
                code = str(random.Random(seed).randrange(10_000_000, 99_999_999))
                text = inputs.scale().text(num_tokens, seed)
                at = text.rfind("\n", 0, int(len(text) * depth)) + 1
                hidden = f"{text[:at]}The access code of the archive is {code}.\n{text[at:]}"
                body = user_message(hidden + QUESTION, **inputs.parameters(max_tokens=ANSWER_TOKENS))
                waves.append(
                    Wave(
                        suite="needle",
                        case=f"{num_tokens} tokens depth {depth:.0%}".replace("%", ""),
                        concurrency=1,
                        round=round_idx,
                        asks=(Ask(name="n", body=body, expected=code, may_be_short=True),),
                        warm_up=round_idx == 0,
                    )
                )
    missing = [n for n in settings.needle_tokens if n not in lengths]
    return SuitePlan(waves=tuple(waves), notes=left_out("needle", missing, inputs.context_tokens))

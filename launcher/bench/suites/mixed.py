"""mixed: what a long cold prompt does to others: a short request behind it, and chats during it."""

from __future__ import annotations

from launcher.bench.prompts import decode_body
from launcher.bench.suites.prefill import ANSWER_TOKENS, QUESTION
from launcher.bench.suites.suite import SuiteInputs, SuitePlan
from launcher.bench.text_scale import fits
from launcher.bench.wave import Ask, Wave, user_message

NUM_CHATS = 4
SHORT_TOKENS = 32


def plan_mixed(inputs: SuiteInputs) -> SuitePlan:
    """Where the context is shorter than the published length the prompt is scaled, and its case says so."""
    waves: list[Wave] = []
    notes: list[str] = []
    for published in inputs.settings.mixed_tokens:
        num_tokens, label = published, str(published)
        if not fits(published, ANSWER_TOKENS, inputs.context_tokens):
            assert inputs.context_tokens is not None
            share = published / max(inputs.settings.mixed_tokens)
            num_tokens = int(inputs.context_tokens * share)
            while num_tokens > 1 and not fits(num_tokens, ANSWER_TOKENS, inputs.context_tokens):
                num_tokens = num_tokens * 31 // 32
            label = f"{published} scaled to {num_tokens}"
            notes.append(f"mixed: {published} tokens scaled to {num_tokens}: the server takes less")
        for round_idx in inputs.rounds:
            waves.append(_short_behind(inputs, num_tokens, label, round_idx))
            waves.append(_chats(inputs, None, f"chats alone, {label}".replace(",", ""), round_idx))
            waves.append(_chats(inputs, num_tokens, label, round_idx))
    return SuitePlan(waves=tuple(waves), notes=tuple(notes))


def _long(inputs: SuiteInputs, num_tokens: int, case: str, round_idx: int, delay_s: float) -> Ask:
    text = inputs.scale().text(num_tokens, f"{inputs.settings.seed}/{case}/{round_idx}")
    body = user_message(text + QUESTION, **inputs.parameters(max_tokens=ANSWER_TOKENS))
    return Ask(name="long", body=body, delay_s=delay_s, case=case, may_be_short=True)


def _chat(inputs: SuiteInputs, number: int, seed: str, max_tokens: int | None = None) -> dict[str, object]:
    return decode_body(
        "prose", number, f"{inputs.settings.seed}/{seed}", **inputs.parameters(max_tokens=max_tokens)
    )


def _short_behind(inputs: SuiteInputs, num_tokens: int, label: str, round_idx: int) -> Wave:
    case = f"short behind {label}"
    short = Ask(
        name="short",
        body=_chat(inputs, round_idx, f"{case}/{round_idx}", max_tokens=SHORT_TOKENS),
        delay_s=inputs.settings.mixed_delay_s,
    )
    long = _long(inputs, num_tokens, f"long before short {label}", round_idx, 0.0)
    return Wave(
        suite="mixed", case=case, concurrency=2, round=round_idx, asks=(long, short), warm_up=round_idx == 0,
        is_cold=True,
    )  # fmt: skip


def _chats(inputs: SuiteInputs, num_tokens: int | None, label: str, round_idx: int) -> Wave:
    case = label if num_tokens is None else f"chats during {label}"
    asks = [
        Ask(name=f"chat{number}", body=_chat(inputs, number, f"{case}/{round_idx}"))
        for number in range(NUM_CHATS)
    ]
    if num_tokens is not None:
        delay_s = inputs.settings.mixed_delay_s
        asks.append(_long(inputs, num_tokens, f"long beside chats {label}", round_idx, delay_s))
    return Wave(
        suite="mixed", case=case, concurrency=len(asks), round=round_idx, asks=tuple(asks),
        warm_up=round_idx == 0, is_cold=num_tokens is not None,
    )  # fmt: skip

"""The sparkDash decode and prefill protocol: forced length, all streams at once, EOS ignored.

Its code prompts are not reproduced here; `structured` and `prose` are the published texts. Figures of
different prompt types, or of another length, do not compare.
"""

from __future__ import annotations

import random
import statistics
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.bench.read_answer import Answer
from launcher.bench.suites.suite import SuiteInputs, SuitePlan, left_out
from launcher.bench.text_scale import fits
from launcher.bench.wave import Ask, Wave, user_message
from launcher.results.records import RequestRecord

REVISION = "decode as of 2026-07, own text"
PROMPTS = {
    "structured": "Count from 1 to 200. Output only the numbers, separated by spaces. No other text.",
    "prose": (
        "Write a detailed step-by-step explanation of how a hash map works, including collision"
        " handling, resizing, and time complexity. Be thorough."
    ),
}
WARM_UP_TOKENS = 32
NO_THINKING = {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled"}
_FILLER = [
    "time",
    "way",
    "day",
    "man",
    "thing",
    "life",
    "hand",
    "part",
    "eye",
    "place",
    "work",
    "week",
    "case",
    "point",
    "home",
    "water",
    "room",
    "book",
    "word",
    "side",
    "kind",
    "head",
    "house",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "law",
    "car",
    "city",
    "name",
    "team",
    "minute",
    "idea",
    "body",
    "back",
    "face",
    "door",
    "health",
    "art",
    "war",
    "party",
    "result",
    "reason",
    "moment",
    "air",
    "teacher",
    "force",
    "foot",
    "boy",
    "age",
    "policy",
    "music",
    "market",
    "sense",
    "plan",
    "road",
    "rate",
    "map",
    "tree",
    "light",
    "field",
    "study",
    "cost",
]


def plan_sparkdash(inputs: SuiteInputs) -> SuitePlan:
    """decode: each prompt type and concurrency; prefill: salted filler at C1, a reply of 8 tokens."""
    settings = inputs.settings
    waves: list[Wave] = []
    notes: tuple[str, ...] = ()
    if "decode" in settings.suites:
        for kind, text in PROMPTS.items():
            waves.append(_decode(kind, 1, 0, (text,), WARM_UP_TOKENS))
            for streams in settings.concurrency:
                for round_idx in range(1, settings.rounds + 1):
                    texts = [
                        f"{text} (stream {n + 1}/{streams})" if streams > 1 else text for n in range(streams)
                    ]
                    waves.append(_decode(kind, streams, round_idx, tuple(texts), settings.max_tokens))
    if "prefill" in settings.suites:
        lengths = [n for n in settings.prefill_tokens if fits(n, 8, inputs.context_tokens)]
        waves += [_prefill(min(512, lengths[0]), 0, settings.seed)] if lengths else []
        for num_tokens in lengths:
            repeats = 3 if num_tokens <= 32_768 else 2 if num_tokens <= 131_072 else 1
            waves += [_prefill(num_tokens, idx, settings.seed) for idx in range(1, repeats + 1)]
        missing = [n for n in settings.prefill_tokens if n not in lengths]
        notes = left_out("prefill", missing, inputs.context_tokens)
    return SuitePlan(waves=tuple(waves), notes=notes)


def _decode(kind: str, streams: int, round_idx: int, texts: Sequence[str], num_tokens: int) -> Wave:
    parameters: dict[str, Any] = {
        "temperature": 0, "top_p": 1, "max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True,
        "stop": [], "chat_template_kwargs": NO_THINKING,
    }  # fmt: skip
    asks = tuple(Ask(name=f"s{n}", body=user_message(text, **parameters)) for n, text in enumerate(texts))
    return Wave(
        suite="decode", case=kind, concurrency=streams, round=round_idx, asks=asks, warm_up=round_idx == 0
    )


def _prefill(num_tokens: int, round_idx: int, seed: int) -> Wave:
    draw = random.Random(f"{seed}/{num_tokens}/{round_idx}")
    salt = uuid.UUID(int=draw.getrandbits(128), version=4)
    filler = " ".join(draw.choice(_FILLER) for _ in range(max(1, num_tokens - 60)))
    text = f"{salt}\nRead the following text.\n{filler}\nReply OK"
    body = user_message(text, max_tokens=8, temperature=0, chat_template_kwargs=NO_THINKING)
    return Wave(
        suite="prefill", case=f"{num_tokens} tokens", concurrency=1, round=round_idx,
        asks=(Ask(name="p", body=body, may_be_short=True),), warm_up=round_idx == 0, is_cold=True,
    )  # fmt: skip


def sparkdash_report(
    records: Sequence[RequestRecord], answers: Mapping[str, Mapping[str, Any]], model: str
) -> dict[str, Any]:
    """Its own names and milliseconds; one entry a prompt type, concurrency and round."""
    waves: dict[tuple[str, str, int, int], list[RequestRecord]] = defaultdict(list)
    for record in records:
        if not record.warm_up:
            waves[(record.suite, record.case, record.concurrency, record.round)].append(record)
    decode = [
        {"promptType": case, "run": round_idx, **_level(wave, answers, streams, model)}
        for (suite, case, streams, round_idx), wave in waves.items()
        if suite == "decode"
    ]
    prefill = [_prefill_sample(wave[0], model) for (suite, *_), wave in waves.items() if suite == "prefill"]
    return {"protocol": "sparkdash", "revision": REVISION, "decode": decode, "prefill": prefill}


def _level(
    wave: Sequence[RequestRecord], answers: Mapping[str, Mapping[str, Any]], streams: int, model: str
) -> dict[str, Any]:
    good = [record for record in wave if record.error is None]
    told = [_stream(idx, record, answers.get(record.request_id, {})) for idx, record in enumerate(wave)]
    rates = [item["decodeTps"] for item in told if item["decodeTps"] is not None]
    waits = [item["ttftMs"] for item in told if item["ttftMs"] is not None]
    firsts = [record.first_token_s for record in good if record.first_token_s is not None]
    decoded = sum((record.completion_tokens or 1) - 1 for record in good)
    prompt = sum(record.prompt_tokens or 0 for record in good)
    window_s = max((record.last_chunk_s for record in good), default=0.0) - min(firsts, default=0.0)
    prefill_s = max(firsts, default=0.0) - min((record.start_s for record in good), default=0.0)
    return {
        "concurrency": streams, "streamsOk": len(good), "streamsFailed": len(wave) - len(good),
        "meanDecodeTps": statistics.fmean(rates) if rates else None,
        "medianDecodeTps": statistics.median(rates) if rates else None,
        "minDecodeTps": min(rates, default=None), "maxDecodeTps": max(rates, default=None),
        "meanTtftMs": statistics.fmean(waits) if waits else None,
        "medianTtftMs": statistics.median(waits) if waits else None,
        "aggregateDecodeTps": decoded / window_s if window_s > 0 else None,
        "aggregatePrefillTps": prompt / prefill_s if prefill_s > 0 else None,
        "totalPrefillTokens": prompt, "totalDecodeTokens": decoded,
        "totalCompletionTokens": sum(record.completion_tokens or 0 for record in good),
        "durationMs": 1000 * (max(r.end_s for r in wave) - min(r.start_s for r in wave)),
        "error": next((record.error for record in wave if record.error), None), "streams": told,
        "model": model,
    }  # fmt: skip


def _stream(idx: int, record: RequestRecord, answer: Mapping[str, Any]) -> dict[str, Any]:
    first_s = record.first_token_s
    decoded = (record.completion_tokens or 1) - 1
    decode_s = record.last_chunk_s - first_s if first_s is not None else 0.0
    content_idx = answer.get("content_idx")
    content_s = record.chunk_times_s[content_idx] if content_idx is not None else None
    return {
        "index": idx,
        "ttftMs": None if first_s is None else 1000 * (first_s - record.start_s),
        "ttftContentMs": None if content_s is None else 1000 * (content_s - record.start_s),
        "reasoningChunks": answer.get("reasoning_chunks", 0),
        "decodeTps": decoded / decode_s if decode_s > 0 else None,
        "decodeTokens": decoded, "completionTokens": record.completion_tokens,
        "prefillTokens": record.prompt_tokens, "totalMs": 1000 * (record.end_s - record.start_s),
        "error": record.error,
    }  # fmt: skip


def _prefill_sample(record: RequestRecord, model: str) -> dict[str, Any]:
    """Without the tool's measured overhead,
    which it takes from 16-token prompts: overheadMs is 0 and said.
    """
    ttft_s = (record.first_token_s or record.end_s) - record.start_s
    computed = (record.prompt_tokens or 0) - (record.cached_tokens or 0)
    return {
        "targetTokens": int(record.case.split()[0]), "promptTokens": record.prompt_tokens,
        "prefillTps": computed / ttft_s if ttft_s > 0 else None, "method": "ttft", "overheadMs": 0,
        "cachedTokens": record.cached_tokens, "ttftMs": 1000 * ttft_s,
        "completionTokens": record.completion_tokens, "durationMs": 1000 * (record.end_s - record.start_s),
        "model": model, "error": record.error,
    }  # fmt: skip


def answer_details(answer: Answer) -> dict[str, Any]:
    """What these reports need beside the record."""
    return {
        "content_idx": answer.content_idx,
        "reasoning_chunks": answer.reasoning_chunks,
        "usage_times": answer.usage_times if len(answer.usage_times) > 1 else [],
    }

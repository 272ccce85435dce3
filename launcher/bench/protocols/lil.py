"""The LIL protocol: temperature 1, EOS respected, streams that restart as they finish, a fixed window."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.bench.prompts import decode_body
from launcher.bench.suites.suite import SuiteInputs, SuitePlan, left_out
from launcher.bench.text_scale import fits
from launcher.bench.wave import Ask, Wave, user_message
from launcher.results.records import RequestRecord

REVISION = "llm_decode_bench 0.6.2, own text"
MAX_TOKENS = 8192
CONTEXTS = (0, 32_768)
WARM_UP_S = 15.0
NUM_ASKS = 64


def plan_lil(inputs: SuiteInputs) -> SuitePlan:
    """decode: sustained over a window, for each context;
    prefill: prompt tokens / TTFT, one after the other.
    """
    settings = inputs.settings
    waves: list[Wave] = []
    notes: list[str] = []
    if "decode" in settings.suites:
        for context in CONTEXTS:
            if context and not fits(context, 512, inputs.context_tokens):
                notes += left_out("decode", [context], inputs.context_tokens)
                continue
            for streams in settings.concurrency:
                waves += [_decode(inputs, context, streams, round_idx) for round_idx in inputs.rounds]
    if "prefill" in settings.suites:
        lengths = [n for n in settings.prefill_tokens if fits(n, 8, inputs.context_tokens)]
        for num_tokens in lengths:
            waves += [_prefill(inputs, num_tokens, round_idx) for round_idx in inputs.rounds]
        missing = [n for n in settings.prefill_tokens if n not in lengths]
        notes += left_out("prefill", missing, inputs.context_tokens)
    return SuitePlan(waves=tuple(waves), notes=tuple(notes))


def _decode(inputs: SuiteInputs, context: int, streams: int, round_idx: int) -> Wave:
    settings = inputs.settings
    room = (inputs.context_tokens or MAX_TOKENS * 8) - context - 256
    parameters = {"temperature": 1.0, "max_tokens": max(16, min(MAX_TOKENS, room))}
    asks = []
    for number in range(max(NUM_ASKS, streams)):
        seed = f"{settings.seed}/lil/{context}/{streams}/{round_idx}/{number}"
        body = decode_body("prose", number, seed, **parameters)
        if context:
            question = body["messages"][0]["content"]
            body["messages"][0]["content"] = inputs.scale().text(context, seed) + "\n\n" + question
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        asks.append(Ask(name=f"a{number}", body=body, may_be_short=True))
    return Wave(
        suite="decode", case=f"context {context}", concurrency=streams, round=round_idx, asks=tuple(asks),
        warm_up=round_idx == 0, workers=streams, cut_at_end=True,
        repeat_for_s=min(WARM_UP_S, settings.window_s) if round_idx == 0 else settings.window_s,
    )  # fmt: skip


def _prefill(inputs: SuiteInputs, num_tokens: int, round_idx: int) -> Wave:
    text = inputs.scale().text(num_tokens, f"{inputs.settings.seed}/lil/{num_tokens}/{round_idx}")
    body = user_message(text, temperature=1.0, max_tokens=1)
    return Wave(
        suite="prefill", case=f"{num_tokens} tokens", concurrency=1, round=round_idx,
        asks=(Ask(name="p", body=body, may_be_short=True),), warm_up=round_idx == 0, is_cold=True,
    )  # fmt: skip


def lil_report(
    records: Sequence[RequestRecord], answers: Mapping[str, Mapping[str, Any]], model: str, window_s: float
) -> dict[str, Any]:
    """Sustained decode: tokens by which the usage of all streams grew inside the window / the window."""
    waves: dict[tuple[str, str, int, int], list[RequestRecord]] = defaultdict(list)
    for record in records:
        if not record.warm_up:
            waves[(record.suite, record.case, record.concurrency, record.round)].append(record)
    results = []
    for (suite, case, streams, round_idx), wave in sorted(waves.items()):
        if suite == "decode":
            start_s = min(record.start_s for record in wave)
            tokens = sum(_tokens_until(start_s + window_s, record, answers) for record in wave)
            rate = tokens / window_s
            results.append({
                "context": int(case.split()[1]), "concurrency": streams, "repeat": round_idx,
                "aggregate_tps": rate, "per_request_tps": rate / streams, "tokens": tokens, "duration":
                window_s,
                "errors": sum(record.error is not None for record in wave),
            })  # fmt: skip
    prefill = [
        {
            "context": int(case.split()[0]), "repeat": round_idx, "prompt_tokens": wave[0].prompt_tokens,
            "ttft": wave[0].first_token_s - wave[0].start_s,
            "prefill_tps": (wave[0].prompt_tokens or 0) / (wave[0].first_token_s - wave[0].start_s),
        }
        for (suite, case, _, round_idx), wave in sorted(waves.items())
        if suite == "prefill" and wave[0].first_token_s is not None
    ]  # fmt: skip
    cells: dict[tuple[int, int], list[float]] = defaultdict(list)
    for item in results:
        cells[(int(item["context"]), int(item["concurrency"]))].append(item["aggregate_tps"])
    table = [
        {
            "context": context,
            "concurrency": streams,
            "median_tps": statistics.median(rates),
            "repeats": len(rates),
        }
        for (context, streams), rates in sorted(cells.items())
    ]
    return {
        "metadata": {"version": REVISION, "engine": "openai", "model": model, "decode_mode": "sustained"},
        "prefill": prefill, "results": results, "summary_table": table, "burst_results": [],
        "burst_summary_table": [],
        "methodology": {"temperature": 1, "respect_eos": True, "window_s": window_s, "metric": "client"},
    }  # fmt: skip


def _tokens_until(end_s: float, record: RequestRecord, answers: Mapping[str, Mapping[str, Any]]) -> int:
    """Completion tokens that had come by then; `usage_times` is on the records' clock."""
    seen = [
        count for at_s, count in answers.get(record.request_id, {}).get("usage_times", ()) if at_s <= end_s
    ]
    if seen:
        return int(max(seen))
    return record.completion_tokens or 0 if record.end_s <= end_s else 0

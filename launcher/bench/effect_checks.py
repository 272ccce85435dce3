"""Was the feature under test in effect, and is a figure possible at all? From the engine's own counters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from launcher.bench.endpoint import Endpoint, ServerFacts
from launcher.bench.engine_metrics import cached_share, counting_problem, growth, total
from launcher.bench.errors import BenchInvalid, BenchRefused
from launcher.bench.settings import BenchSettings
from launcher.bench.wave import Wave
from launcher.results.records import EngineSample, RequestRecord

# Chat templates begin alike, so a few tokens of a cold prompt are always known.
MOST_COLD_SHARE = 0.05
MOST_COLD_TOKENS = 64
LEAST_WARM_SHARE = 0.5
# Clocks of client and engine frame a wave differently.
BOUND_SLACK = 1.02
ENGRAM_ROWS = "sparkctl_engram_rows_total"
# On a GPU the row store's counters go out once a second, with the tokens of a step: a shorter wave may show
# none of its own.
ENGRAM_PUBLISHED_S = 3.0


def expected_features(settings: BenchSettings, facts: ServerFacts, endpoint: Endpoint) -> tuple[str, ...]:
    """What was asked for, and what the server was started with."""
    found = set(settings.expect)
    if facts.engine_args.get("speculative_algorithm"):
        found.add("speculation")
    if "prefix" in settings.suites:
        found.add("prefix-cache")
    plan = endpoint.record.plan if endpoint.record else None
    if plan is not None and "SPARKCTL_ENGRAM_DIR" in plan.head.environment:
        found.add("engram")
    return tuple(sorted(found))


def refuse_inactive(features: Sequence[str], facts: ServerFacts, metrics: dict[str, float] | None) -> None:
    """Before anything is measured. Raises BenchRefused."""
    if not features:
        return
    if metrics is None:
        raise BenchRefused(
            f"/metrics must tell whether {', '.join(features)} is in effect, got none from this endpoint",
            hint="start the server with --enable-metrics, or leave that suite or --expect out",
        )
    if "speculation" in features and not facts.engine_args.get("speculative_algorithm"):
        raise BenchRefused(
            "speculation must be active, the engine was started without a speculative algorithm",
            hint="choose a recipe with speculation, or leave --expect speculation out",
        )
    if "prefix-cache" in features and facts.engine_args.get("disable_radix_cache"):
        raise BenchRefused(
            "the prefix cache must be active, the engine was started with --disable-radix-cache",
            hint="start it without that flag, or leave the prefix suite out",
        )
    if "engram" in features and total(metrics, ENGRAM_ROWS) is None:
        raise BenchRefused(
            f"Engram rows from the row store must be active, /metrics has no {ENGRAM_ROWS}",
            hint="sparkctl audit says what each rank runs",
        )


def refuse_no_effect(
    features: Sequence[str], wave: Wave, before: EngineSample, after: EngineSample,
    records: Sequence[RequestRecord],
) -> None:  # fmt: skip
    """After each wave. Raises BenchInvalid."""
    tokens = sum(record.completion_tokens or 0 for record in records)
    if tokens <= len(records):
        return
    if "speculation" in features and not growth(before, after, "sglang:spec_verify_calls_total"):
        raise BenchInvalid(
            f"{wave.name} must be decoded with speculation, the engine counted no verify call",
            hint="sparkctl logs tells why drafts are off",
        )
    is_long = after.time_s - before.time_s >= ENGRAM_PUBLISHED_S
    if "engram" in features and is_long and not growth(before, after, ENGRAM_ROWS):
        raise BenchInvalid(
            f"{wave.name} must read Engram rows, the row store counted none", hint="sparkctl audit"
        )


def refuse_no_rows(features: Sequence[str], samples: Sequence[EngineSample]) -> None:
    """At the end, over all waves: those that were too short to be judged alone too. Raises BenchInvalid."""
    if "engram" not in features:
        return
    ends = [
        (first, last) for first, last in pairwise(samples) if (first.when, last.when) == ("before", "after")
    ]
    if ends and not any(growth(first, last, ENGRAM_ROWS) for first, last in ends):
        raise BenchInvalid(
            "the run must read Engram rows, the row store counted none in any wave", hint="sparkctl audit"
        )


def refuse_wrong_cache(
    wave: Wave, before: EngineSample | None, after: EngineSample | None, records: Sequence[RequestRecord]
) -> None:
    """Cold must be cold and warm must be warm. Raises BenchInvalid."""
    share = cached_share(before, after, records)
    if share is None:
        return
    prompt = sum(record.prompt_tokens or 0 for record in records)
    if wave.is_cold and share > MOST_COLD_SHARE and share * prompt > MOST_COLD_TOKENS:
        raise BenchInvalid(
            f"{wave.name} must be cold, {share:.0%} of its prompt came from the prefix cache",
            hint="another --seed gives other prompts; nobody else may send the same text",
        )
    if wave.is_warm and share < LEAST_WARM_SHARE:
        raise BenchInvalid(
            f"{wave.name} must be warm, only {share:.0%} of its prompt came from the prefix cache",
            hint="the KV pool may be too small for the prompt: sparkctl fit",
        )


def untold_cache(wave: Wave, records: Sequence[RequestRecord]) -> list[str]:
    """A note: without the cached tokens of an answer, its prefill rate is that of the whole prompt."""
    if not wave.is_warm or all(record.cached_tokens is not None for record in records):
        return []
    return [
        "this server does not tell cached tokens, so the prefill tokens/s of warm prompts are of the whole"
        " prompt (SGLang tells them with --enable-cache-report)"
    ]


def refuse_impossible(
    settings: BenchSettings, wave: Wave, before: EngineSample, after: EngineSample,
    records: Sequence[RequestRecord],
) -> None:  # fmt: skip
    """Figures above their bound are wrong, however they came about. Raises BenchInvalid."""
    problem = counting_problem(before, after, records)
    if problem is not None:
        raise BenchInvalid(
            f"{wave.name}: {problem}", hint="let nobody else use the server, then --resume DIR"
        )
    passes = sum(
        growth(before, after, "sglang:cuda_graph_passes_total", f'mode="{mode}"') or 0.0
        for mode in ("decode_none", "decode_cuda_graph")
    )
    answered = [record for record in records if record.error is None]
    if not passes or not answered:
        return
    per_pass = max(1.0, total(after.metrics, "sglang:spec_num_draft_tokens") or 0.0)
    decoded = sum(max(0, (record.completion_tokens or 0) - 1) for record in answered)
    streams = max(len(wave.asks) if wave.workers is None else wave.workers, 1)
    if decoded > passes * per_pass * streams * BOUND_SLACK:
        raise BenchInvalid(
            f"{wave.name}: {decoded} tokens in {passes:.0f} decode passes of {streams} stream(s) exceed"
            f" {per_pass:.0f} token(s) a pass and stream",
            hint="usage, or the engine's counters, are wrong: do not publish this",
        )
    if settings.step_bytes and settings.bandwidth_bytes_per_s:
        starts = [record.start_s for record in answered]
        window_s = max(record.end_s for record in answered) - min(starts)
        bound = settings.bandwidth_bytes_per_s / settings.step_bytes
        if window_s > 0 and passes / window_s > bound * BOUND_SLACK:
            raise BenchInvalid(
                f"{wave.name}: {passes / window_s:.1f} steps/s exceed the memory's bound of {bound:.1f}",
                hint="--step-bytes or --bandwidth is wrong, or the clock is",
            )

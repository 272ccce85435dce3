"""The engine's /metrics before and after each wave, and what they must agree with."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from launcher.bench.endpoint import Endpoint
from launcher.results.records import EngineSample, RequestRecord

# What a result needs. The engine has some 400 series; a run would drown in them.
_KEPT = (
    "sglang:cuda_graph_passes_total", "sglang:realtime_tokens_total", "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total", "sglang:cached_tokens_total", "sglang:num_requests_total",
    "sglang:num_aborted_requests_total", "sglang:num_retracted_reqs", "sglang:spec_verify_calls_total",
    "sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:spec_num_draft_tokens",
    "sglang:spec_num_steps", "sglang:token_usage", "sglang:cache_hit_rate", "sglang:max_total_num_tokens",
    "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:forward_execution_seconds_total",
    "sglang:scheduler_process_cpu_seconds_total", "sglang:scheduler_idle_seconds_total",
)  # fmt: skip
_KEPT_PREFIX = "sparkctl_engram_"
_LINE = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})? (\S+)")


def read_metrics(endpoint: Endpoint) -> dict[str, float] | None:
    """'name{labels}' -> value; None where the endpoint has no /metrics of an SGLang."""
    reply = endpoint.get("/metrics")
    if reply.status_code != 200 or "sglang:" not in reply.text:
        return None
    return parse_metrics(reply.text)


def parse_metrics(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not (match[1] in _KEPT or match[1].startswith(_KEPT_PREFIX)):
            continue
        value = float(match[3])
        if math.isfinite(value):
            found[match[1] + (match[2] or "")] = value
    return found


def total(metrics: Mapping[str, float], name: str, label: str = "") -> float | None:
    """Sum over the series of that name (with `label` in it); None where there is none."""
    values = [
        value for series, value in metrics.items() if series.partition("{")[0] == name and label in series
    ]
    return sum(values) if values else None


def growth(before: EngineSample, after: EngineSample, name: str, label: str = "") -> float | None:
    end = total(after.metrics, name, label)
    return None if end is None else end - (total(before.metrics, name, label) or 0.0)


def counting_problem(
    before: EngineSample, after: EngineSample, records: Sequence[RequestRecord]
) -> str | None:
    """Why the engine's own counters say that the records are not the whole truth of this wave."""
    if any(record.error for record in records):
        return None  # an aborted request is counted in part
    answered = growth(before, after, "sglang:num_requests_total")
    if answered is not None and answered > len(records):
        foreign = answered - len(records)
        return f"the engine answered {foreign:.0f} request(s) of somebody else meanwhile: not idle"
    generated = growth(before, after, "sglang:generation_tokens_total")
    counted = sum(record.completion_tokens or 0 for record in records)
    if generated is not None and counted > generated:
        return f"usage counts {counted} tokens, but the engine generated only {generated:.0f}"
    return None


def cached_share(
    before: EngineSample | None, after: EngineSample | None, records: Sequence[RequestRecord]
) -> float | None:
    """Prompt tokens that came from the prefix cache, as a share; None where nobody tells."""
    prompt = sum(record.prompt_tokens or 0 for record in records)
    if not prompt:
        return None
    if all(record.cached_tokens is not None for record in records):
        return sum(record.cached_tokens or 0 for record in records) / prompt
    if before is None or after is None:
        return None
    computed = growth(before, after, "sglang:realtime_tokens_total", 'mode="prefill_compute"')
    cached = growth(before, after, "sglang:realtime_tokens_total", 'mode="prefill_cache"')
    if cached is None or computed is None:
        return None
    return cached / max(1.0, cached + computed)

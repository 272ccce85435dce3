"""Numbers of the model: published constants, latency tables,
and parameters that were fitted to published rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

HERE = "launcher.performance"
# The order in which they are searched for; docs/performance-model.md explains each.
FITTED_NAMES = (
    "row_novelty",
    "stream_novelty_one_prompt",
    "row_cost_ms",
    "stock_dense_slowdown",
    "step_overhead_ms",
    "live_rejected_share",
    "prefill_expert_tflops",
    "prefill_token_us",
    "prefill_head_us",
    "prompt_overhead_s",
    "index_pair_ns",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Found by `python -m tests.launcher.performance.find_parameters`; units are in the names."""

    row_novelty: float
    stream_novelty_one_prompt: float
    row_cost_ms: float
    stock_dense_slowdown: float
    step_overhead_ms: float
    live_rejected_share: float
    prefill_expert_tflops: float
    prefill_token_us: float
    prefill_head_us: float
    prompt_overhead_s: float
    index_pair_ns: float


def read_data(name: str) -> dict[str, object]:
    document = json.loads(files(HERE).joinpath(name).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@cache
def constant(name: str) -> float:
    """A published number; its source stands beside it in constants.json."""
    entry = read_data("constants.json")[name]
    assert isinstance(entry, dict)
    return float(entry["value"])


@cache
def fitted() -> Fitted:
    entries = read_data("fitted.json")["parameters"]
    assert isinstance(entries, dict)
    return Fitted(**{name: float(entries[name]) for name in FITTED_NAMES})

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
    "expert_skew",
    "experts_of_one_prompt",
    "stock_dense_slowdown",
    "live_rejected_share",
    "kernel_tflops",
    "index_pair_ns",
    "prompt_overhead_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Found by `python -m tests.launcher.performance.find_parameters`; units are in the names."""

    expert_skew: float
    experts_of_one_prompt: float
    stock_dense_slowdown: float
    live_rejected_share: float
    kernel_tflops: float
    index_pair_ns: float
    prompt_overhead_s: float


def read_data(name: str) -> dict[str, object]:
    document = json.loads(files(HERE).joinpath(name).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@cache
def constant(name: str) -> float:
    """A published number; its source stands beside it in constants.json."""
    return _constants()[name]


@cache
def _constants() -> dict[str, float]:
    entries = read_data("constants.json")
    return {name: float(entry["value"]) for name, entry in entries.items() if isinstance(entry, dict)}


@cache
def fitted() -> Fitted:
    entries = read_data("fitted.json")["parameters"]
    assert isinstance(entries, dict)
    return Fitted(**{name: float(entries[name]) for name in FITTED_NAMES})

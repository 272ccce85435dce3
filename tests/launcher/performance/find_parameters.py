"""Fit the parameters to the rows with role `fit`: python -m tests.launcher.performance.find_parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.performance.constants import FITTED_NAMES, Fitted
from launcher.performance.published import predict, published_rows

FILE = Path(__file__).parents[3] / "launcher" / "performance" / "fitted.json"
# Name -> first guess, least, most. A value at a bound says that these rows do not determine it.
BOUNDS: dict[str, tuple[float, float, float]] = {
    "row_novelty": (0.4, 0.05, 1.0),
    "stream_novelty_one_prompt": (0.6, 0.05, 1.0),
    "row_cost_ms": (0.5, 0.01, 3.0),
    "stock_dense_slowdown": (1.3, 1.0, 3.0),
    "step_overhead_ms": (2.0, 0.1, 20.0),
    "live_rejected_share": (0.2, 0.01, 1.0),
    "prefill_expert_tflops": (28.0, 5.0, 250.0),
    "prefill_token_us": (31.0, 1.0, 200.0),
    "prefill_head_us": (37.0, 1.0, 200.0),
    "prompt_overhead_s": (0.2, 0.01, 2.0),
    "index_pair_ns": (0.5, 0.01, 5.0),
}
_DIGITS = 4


def find_parameters() -> dict[str, float]:
    """Least sum of squared relative errors over the fitted rows."""
    start = [BOUNDS[name][0] for name in FITTED_NAMES]
    found = search(misfit, start, [BOUNDS[name][1:] for name in FITTED_NAMES])
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in zip(FITTED_NAMES, found, strict=True)}


def misfit(values: Sequence[float]) -> float:
    """Sum of squared relative errors over the rows with role `fit`."""
    known = Fitted(**dict(zip(FITTED_NAMES, values, strict=True)))
    rows = [row for row in published_rows() if row["role"] == "fit"]
    return float(sum((predict(row, known) / row["published"] - 1) ** 2 for row in rows))


def search(
    misfit: Callable[[Sequence[float]], float], start: Sequence[float], bounds: Sequence[tuple[float, float]]
) -> list[float]:
    """Coordinate search with a step of its own for each value: no library, the same answer always."""
    values, steps = list(start), [0.3] * len(start)
    best = misfit(values)
    for _ in range(600):
        for index, (least, most) in enumerate(bounds):
            for factor in (1 + steps[index], 1 / (1 + steps[index])):
                tried = list(values)
                tried[index] = min(most, max(least, values[index] * factor))
                if (seen := misfit(tried)) < best - 1e-13:
                    best, values = seen, tried
                    steps[index] *= 1.3
                    break
            else:
                steps[index] *= 0.6
        if max(steps) < 1e-5:
            break
    return values


def main() -> None:
    rows = [row["id"] for row in published_rows() if row["role"] == "fit"]
    document = {
        "what": "fitted, not measured: least squares over the published rows named here",
        "rows": rows,
        "parameters": find_parameters(),
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Fit the parameters to the rows with role `fit`, again without each of these rows, and without each build.

python -m tests.launcher.performance.find_parameters
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.performance.constants import FITTED_NAMES, Fitted
from launcher.performance.published import predict, published_rows

FILE = Path(__file__).parents[3] / "launcher" / "performance" / "fitted.json"
# Name -> first guess, least, most. A value at a bound says that these rows do not determine it.
BOUNDS: dict[str, tuple[float, float, float]] = {
    "expert_skew": (0.9, 0.0, 1.5),
    "experts_of_one_prompt": (250.0, 20.0, 384.0),
    "stock_dense_slowdown": (1.4, 1.0, 3.0),
    "live_rejected_share": (0.2, 0.0, 1.0),
    "kernel_tflops": (40.0, 5.0, 250.0),
    "index_pair_ns": (1.2, 0.01, 5.0),
    "prompt_overhead_s": (0.2, 0.0, 2.0),
}
_DIGITS = 4
Errors = Callable[[Sequence[float]], list[float]]


def fit_rows() -> list[str]:
    return [row["id"] for row in published_rows() if row["role"] == "fit"]


def known_of(values: Sequence[float]) -> Fitted:
    return Fitted(**dict(zip(FITTED_NAMES, values, strict=True)))


def relative_errors(values: Sequence[float], ids: Sequence[str]) -> list[float]:
    rows = {row["id"]: row for row in published_rows()}
    known = known_of(values)
    return [predict(rows[row_id], known) / rows[row_id]["published"] - 1 for row_id in ids]


def misfit(values: Sequence[float]) -> float:
    """Sum of squared relative errors over the rows with role `fit`."""
    return sum(error**2 for error in relative_errors(values, fit_rows()))


def find_parameters(without: Sequence[str] = (), start: Sequence[float] | None = None) -> list[float]:
    """Least sum of squared relative errors over the fitted rows, or over all but some of them."""
    ids = [row_id for row_id in fit_rows() if row_id not in without]
    guess = list(start or (BOUNDS[name][0] for name in FITTED_NAMES))
    return least_squares(
        lambda values: relative_errors(values, ids), guess, [BOUNDS[n][1:] for n in FITTED_NAMES]
    )


def least_squares(
    errors: Errors, start: Sequence[float], bounds: Sequence[tuple[float, float]]
) -> list[float]:
    """Levenberg and Marquardt's steps within bounds: no library, the same answer always."""
    values, damping = list(start), 1e-3
    seen = errors(values)
    best = _squares(seen)
    for _ in range(60):
        slopes = [_slope(errors, values, seen, index, bounds) for index in range(len(values))]
        push = [sum(a * b for a, b in zip(slope, seen, strict=True)) for slope in slopes]
        free = [i for i, (least, most) in enumerate(bounds) if not _is_held(values[i], push[i], least, most)]
        before = best
        while damping < 1e8:
            step = _step(slopes, push, free, damping)
            tried = list(values)
            for index, change in zip(free, step, strict=True):
                tried[index] = min(bounds[index][1], max(bounds[index][0], values[index] + change))
            new = errors(tried)
            if _squares(new) < best:
                values, seen, best, damping = tried, new, _squares(new), damping / 3
                break
            damping *= 4
        if before - best < 1e-9 * before:
            break
    return values


def _squares(errors: Sequence[float]) -> float:
    return sum(error * error for error in errors)


def _is_held(value: float, push: float, least: float, most: float) -> bool:
    return (value <= least and push > 0) or (value >= most and push < 0)


def _slope(
    errors: Errors,
    values: Sequence[float],
    seen: Sequence[float],
    index: int,
    bounds: Sequence[tuple[float, float]],
) -> list[float]:
    width = 1e-4 * max(abs(values[index]), 1e-3)
    if values[index] + width > bounds[index][1]:
        width = -width
    moved = list(values)
    moved[index] += width
    return [(new - old) / width for new, old in zip(errors(moved), seen, strict=True)]


def _step(
    slopes: Sequence[Sequence[float]], push: Sequence[float], free: Sequence[int], damping: float
) -> list[float]:
    """Solve (J'J + damping * diagonal) step = -push for the free values, by elimination."""
    rows = [
        [
            sum(a * b for a, b in zip(slopes[i], slopes[j], strict=True)) * (1 + damping * (i == j))
            for j in free
        ]
        + [-push[i]]
        for i in free
    ]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column][column] += 1e-18
        for index in range(size):
            if index != column:
                factor = rows[index][column] / rows[column][column]
                rows[index] = [a - factor * b for a, b in zip(rows[index], rows[column], strict=True)]
    return [row[size] / row[index] for index, row in enumerate(rows)]


def rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def predicted_without(ids: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Row -> what parameters predict that were found without any of these rows."""
    rows = {row["id"]: row for row in published_rows()}
    known = known_of(find_parameters(ids, values))
    return {row_id: rounded(predict(rows[row_id], known)) for row_id in ids}


def rows_of_stacks() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in published_rows():
        if row["role"] == "fit":
            found.setdefault(row["stack"], []).append(row["id"])
    return found


def main() -> None:
    values = find_parameters()
    document = {
        "what": "fitted, not measured: least squares of relative errors over the published rows named here",
        "rows": fit_rows(),
        "parameters": {name: rounded(value) for name, value in zip(FITTED_NAMES, values, strict=True)},
        "left_out": {
            row_id: value for row in fit_rows() for row_id, value in predicted_without([row], values).items()
        },
        "without_stack": {stack: predicted_without(ids, values) for stack, ids in rows_of_stacks().items()},
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

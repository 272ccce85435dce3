"""Measuring a cost table, as a plan: which steps to time, in what order, and what the samples say. Pure.

Whoever times the steps (an engine at each batch and width) hands the samples back; nothing here waits or
reads a clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sgl_ext.errors import CostTableError
from sgl_ext.speculation.cost_table import CostTable

DRAFT = -1  # width under which the draft alone is timed
MIN_SAMPLES = 20
SAMPLES_A_PASS = 10  # MIN_SAMPLES in two passes
# A step with a prefill, a checkpoint or a clock change in it takes several times as long; the median of what
# is left is what the controller can expect. Six deviations keep all of a normal distribution and drop those.
_OUTLIER_DEVIATIONS = 6
_MAX_OUTLIER_SHARE = 0.2
_CLOSE_SHARE = 0.05  # a very steady engine's deviation is nothing; what is so close is no outlier
# A wider step that measures faster is levelled, which only overstates what drafting costs: where the host is
# the limit all widths cost the same, and the order is noise. Much more than noise is a wrong measurement.
_MAX_STEP_BACK = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Take num_samples times of a step of `batch` requests at `width` (DRAFT: the draft alone), after
    num_warmup untimed steps."""

    batch: int
    width: int
    num_samples: int
    num_warmup: int


def plan_timings(
    graph_batches: Sequence[int], max_batch: int, block: int, rounds: int = 3
) -> tuple[Timing, ...]:
    """Timings over the captured batch sizes up to max_batch and all widths, in `rounds` passes.

    Each pass goes through all widths of a batch, every second one backwards, so that a machine that warms up
    or slows down meanwhile does not favour one end.
    """
    batches = sorted({batch for batch in graph_batches if 1 <= batch <= max_batch} | {max_batch})
    timings = []
    for round_idx in range(rounds):
        widths = list(range(DRAFT, block + 1))
        if round_idx % 2:
            widths.reverse()
        for batch in batches:
            timings += [
                Timing(batch=batch, width=width, num_samples=SAMPLES_A_PASS, num_warmup=5) for width in widths
            ]
    return tuple(timings)


def robust_median(samples_ns: Sequence[int], what: str, *, allow_busy: bool = False) -> tuple[int, int]:
    """Median and number of the samples without outliers (over six median deviations from the median).

    Raises CostTableError where there are too few samples, or too many outliers: such a machine was busy.
    """
    if len(samples_ns) < MIN_SAMPLES:
        raise CostTableError(
            f"{what} must have {MIN_SAMPLES} samples or more, got {len(samples_ns)}.", hint="time more steps"
        )
    middle = statistics.median_low(samples_ns)
    deviation = statistics.median_low([abs(sample - middle) for sample in samples_ns])
    kept = [
        sample
        for sample in samples_ns
        if abs(sample - middle) <= max(_OUTLIER_DEVIATIONS * deviation, _CLOSE_SHARE * middle)
    ]
    dropped = len(samples_ns) - len(kept)
    if dropped > _MAX_OUTLIER_SHARE * len(samples_ns) and not allow_busy:
        raise CostTableError(
            f"{what} must have at most {_MAX_OUTLIER_SHARE:.0%} outliers, "
            f"got {dropped} of {len(samples_ns)}.",
            hint="let nothing else run on the nodes, and measure again",
        )
    return statistics.median_low(kept), len(kept)


def build_cost_table(
    steps_ns: Mapping[tuple[int, int], Sequence[int]], block: int, *, allow_busy: bool = False
) -> tuple[CostTable, list[list[int]]]:
    """The table from times of whole steps by (batch, width), and how many samples stand behind each entry of
    verify_ns.

    A step of width DRAFT drafts and verifies nothing: what it takes beyond a plain step is the draft; what
    another takes beyond the draft is its verify. Under overlap neither is what that part takes alone; their
    sum is, and that is what the controller adds up. allow_busy: takes the medians of a machine that was busy,
    which is refused otherwise.
    """
    verify, counts, draft = [], [], []
    batches = sorted({batch for batch, _ in steps_ns})
    for batch in batches:
        times, num_samples = {}, {}
        for width in range(DRAFT, block + 1):
            if (batch, width) not in steps_ns:
                raise CostTableError(
                    f"Timings must cover batch {batch}, width {width}, got none.", hint="measure it again"
                )
            what = f"Batch {batch}, width {width}"
            times[width], num_samples[width] = robust_median(
                steps_ns[batch, width], what, allow_busy=allow_busy
            )
        draft.append(max(0, times[DRAFT] - times[0]))
        row = [times[0], *(max(1, times[width] - draft[-1]) for width in range(1, block + 1))]
        verify.append(tuple(_level(row, f"batch {batch}", allow_busy)))
        counts.append([num_samples[width] for width in range(block + 1)])
    return CostTable(batches=tuple(batches), verify_ns=tuple(verify), draft_ns=tuple(draft)), counts


def _level(times_ns: Sequence[int], what: str, allow_busy: bool) -> list[int]:
    """Times that do not fall; refuses a fall beyond noise."""
    levelled: list[int] = []
    for time_ns in times_ns:
        highest = levelled[-1] if levelled else time_ns
        if time_ns < highest * (1 - _MAX_STEP_BACK) and not allow_busy:
            raise CostTableError(
                f"Times of {what} must not fall by more than {_MAX_STEP_BACK:.0%}, got {list(times_ns)} ns.",
                hint="let nothing else run on the nodes, and measure again",
            )
        levelled.append(max(highest, time_ns))
    return levelled

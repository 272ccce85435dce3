"""Pure: figures over time from scrapes. Rates come from counters; None means "not measured", never 0."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from launcher.dashboard.engine_metrics import EngineSample

# Long enough that a step of a second (a large batch after a long prompt) does not show as zero.
WINDOW_S = 10.0
KEEP_S = 900.0
# Points of a plot: more are not seen on a screen.
MAX_POINTS = 180
# Two scrapes further apart than this have a hole between them: what happened in it is not known.
HOLE_S = 30.0

Read = Callable[[EngineSample], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the page shows of one moment. Shares are 0 to 1."""

    tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    tokens_per_step: float | None = None
    kv_usage: float | None = None
    kv_used_tokens: float | None = None
    kv_tokens: float | None = None
    running: float | None = None
    queued: float | None = None
    prefix_hit_share: float | None = None
    engram_hit_share: float | None = None
    engram_wait_p95_us: float | None = None
    draft_break_even: float | None = None
    draft_below_break_even: float | None = None
    draft_requests_off: float | None = None


class History:
    """The samples of the last KEEP_S seconds, and the figures that followed from them."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._samples: deque[EngineSample] = deque()
        self._figures: deque[tuple[float, Figures]] = deque()

    def add(self, sample: EngineSample) -> None:
        self._samples.append(sample)
        recent = takewhile(lambda item: item.at_s >= sample.at_s - WINDOW_S - 1e-6, reversed(self._samples))
        self._figures.append((sample.at_s, figures_of(list(recent)[::-1])))
        oldest_s = sample.at_s - self._keep_s
        while self._samples[0].at_s < oldest_s:
            self._samples.popleft()
        while self._figures[0][0] < oldest_s:
            self._figures.popleft()

    def copy(self) -> History:
        """One that does not grow with this one: another thread may read it."""
        other = History(self._keep_s)
        other._samples, other._figures = self._samples.copy(), self._figures.copy()
        return other

    @property
    def newest(self) -> Figures | None:
        return self._figures[-1][1] if self._figures else None

    @property
    def newest_s(self) -> float | None:
        return self._figures[-1][0] if self._figures else None

    def series(self, name: str, now_s: float) -> list[tuple[float, float | None]]:
        """(seconds ago, value), oldest first, at most MAX_POINTS; a hole is one point without a value."""
        points: list[tuple[float, float | None]] = []
        before_s: float | None = None
        for at_s, figures in thin(list(self._figures), MAX_POINTS):
            if before_s is not None and at_s - before_s > HOLE_S:
                points.append((round(now_s - at_s, 1), None))
            value = getattr(figures, name)
            finite = value is not None and math.isfinite(value)
            points.append((round(now_s - at_s, 1), value if finite else None))
            before_s = at_s
        return points


def thin(items: Sequence[tuple[float, Figures]], most: int) -> list[tuple[float, Figures]]:
    """Every n-th, counted from the newest, so that the newest is always there."""
    step = max(1, math.ceil(len(items) / most))
    return list(items[::-1][::step][::-1])


def figures_of(samples: Sequence[EngineSample]) -> Figures:
    """`samples`: oldest first, at least one."""
    last = samples[-1]
    recent = _since_restart([sample for sample in samples if sample.at_s >= last.at_s - WINDOW_S - 1e-6])
    decode_rate = rate(recent, lambda sample: sample.decode_tokens)
    return Figures(
        # The engine's own figure covers its last 40 steps; a single scrape has no other.
        tokens_per_s=decode_rate if decode_rate is not None else last.tokens_per_s,
        prefill_tokens_per_s=rate(recent, lambda sample: sample.prefill_tokens),
        tokens_per_step=last.tokens_per_step,
        kv_usage=last.kv_usage,
        kv_used_tokens=last.kv_used_tokens,
        kv_tokens=last.kv_tokens,
        running=last.running,
        queued=last.queued,
        prefix_hit_share=last.prefix_hit_share,
        engram_hit_share=_hit_share(recent),
        engram_wait_p95_us=wait_quantile_us(recent, 0.95),
        draft_break_even=last.draft_break_even,
        draft_below_break_even=last.draft_below_break_even,
        draft_requests_off=last.draft_requests_off,
    )


def _since_restart(samples: Sequence[EngineSample]) -> Sequence[EngineSample]:
    """A counter that went back belongs to an engine that was started anew."""
    for idx in range(len(samples) - 1, 0, -1):
        if any(
            before is not None and after is not None and after < before
            for before, after in (
                (read(samples[idx - 1]), read(samples[idx])) for read in (_decode, _prefill, _rows)
            )
        ):
            return samples[idx:]
    return samples


def _decode(sample: EngineSample) -> float | None:
    return sample.decode_tokens


def _prefill(sample: EngineSample) -> float | None:
    return sample.prefill_tokens


def _rows(sample: EngineSample) -> float | None:
    return sample.engram_rows


def rate(samples: Sequence[EngineSample], read: Read) -> float | None:
    """Growth a second between the first and the last sample that have the counter."""
    known = [(sample.at_s, value) for sample in samples if (value := read(sample)) is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    return max(0.0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _hit_share(samples: Sequence[EngineSample]) -> float | None:
    """Of the window's rows; of all rows since the start when the window had none."""
    last = samples[-1]
    if last.engram_rows is None or last.engram_hit_rows is None:
        return None
    first = samples[0]
    rows, hits = last.engram_rows, last.engram_hit_rows
    if first.engram_rows is not None and first.engram_hit_rows is not None and rows > first.engram_rows:
        rows, hits = rows - first.engram_rows, hits - first.engram_hit_rows
    return min(1.0, max(0.0, hits / rows)) if rows else None


def wait_quantile_us(samples: Sequence[EngineSample], quantile: float) -> float | None:
    """Upper bound of the wait that this share of (step, layer) stays under; inf beyond the last bound.

    Example: bounds {10: 90, 50: 99, inf: 100}, 0.95 -> 50.
    """
    after = samples[-1].waits
    before = samples[0].waits
    new = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    total = new.get(math.inf, 0.0)
    if total <= 0:  # the window had no step
        new, total = dict(after), after.get(math.inf, 0.0)
    if total <= 0:
        return None
    return next(bound for bound in sorted(new) if new[bound] >= quantile * total)

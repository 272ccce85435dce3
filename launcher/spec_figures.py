"""Pure: speculation's own numbers out of a scrape of the head's /metrics (sgl_ext/speculation/metrics.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.dashboard.engine_metrics import Samples, parse_exposition

PREFIX = "sparkctl_spec_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFigures:
    """Since the engine's start. `accepted`: share of the tests of a position that were accepted, by position;
    `widths`: request steps by verified width; `stopped`: requests that stopped drafting, by reason."""

    is_tuned: bool
    tokens_per_step: float | None
    accepted: Mapping[int, float]
    widths: Mapping[int, int]
    stopped: Mapping[str, int]
    requests_off: int
    draft_s: float
    verify_s: float
    recent_tokens_per_step: float
    break_even: float
    is_below_break_even: bool


def read_spec_figures(text: str) -> SpecFigures | None:
    """None where the engine decides no widths. Raises ValueError when the text is no exposition."""
    samples = parse_exposition(text)
    if PREFIX + "tuned" not in samples:
        return None
    steps = _one(samples, "request_steps_total")
    tested = _by(samples, "tested_total", "position")
    accepted = _by(samples, "accepted_total", "position")
    widths = _by(samples, "width_request_steps_total", "width")
    return SpecFigures(
        is_tuned=_one(samples, "tuned") == 1,
        tokens_per_step=_one(samples, "tokens_total") / steps if steps else None,
        accepted={int(key): accepted.get(key, 0) / count for key, count in sorted(tested.items()) if count},
        widths={int(key): int(count) for key, count in sorted(widths.items())},
        stopped={
            key: int(count)
            for key, count in sorted(_by(samples, "switched_off_total", "reason").items())
            if count
        },
        requests_off=int(_one(samples, "requests_off")),
        draft_s=_one(samples, "draft_seconds_total"),
        verify_s=_one(samples, "verify_seconds_total"),
        recent_tokens_per_step=_one(samples, "tokens_per_step_recent"),
        break_even=_one(samples, "break_even_recent"),
        is_below_break_even=_one(samples, "below_break_even") == 1,
    )


def describe_spec(figures: SpecFigures) -> list[str]:
    """Lines for `sparkctl status`; the last one is the alarm, where it is on."""
    if figures.tokens_per_step is None:
        tokens = "no decode step yet"
    else:
        tokens = f"tokens/step {figures.tokens_per_step:.2f}"
    accepted = " ".join(f"{share:.0%}" for share in figures.accepted.values()) or "none tested"
    widths = " ".join(f"{width}:{count}" for width, count in figures.widths.items() if count) or "none"
    lines = [
        f"{tokens}, accepted by position {accepted}, steps by width {widths}, "
        f"draft {figures.draft_s:.1f} s, verify {figures.verify_s:.1f} s"
    ]
    if figures.stopped:
        why = ", ".join(f"{reason} {count}" for reason, count in figures.stopped.items())
        lines.append(f"stopped drafting: {why}; off now: {figures.requests_off}")
    if not figures.is_tuned:
        lines.append("no cost table: requests verify whole blocks unless they ask for less")
    if figures.is_below_break_even:
        lines.append(
            f"ALARM: drafting brings {figures.recent_tokens_per_step:.2f} tokens a step "
            f"and must bring {figures.break_even:.2f}"
        )
    return lines


def _one(samples: Samples, name: str) -> float:
    return sum(value for _, value in samples.get(PREFIX + name, ()))


def _by(samples: Samples, name: str, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, value in samples.get(PREFIX + name, ()):
        key = labels.get(label, "?")
        found[key] = found.get(key, 0.0) + value
    return found

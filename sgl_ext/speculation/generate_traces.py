"""Traces drawn from published acceptance figures: what code, JSON, prose and worse texts do to a draft.

Chances are by position, given that the ones before were accepted. Sources: prose 0.58 0.77 0.71 0.75 0.67
(published for V4-Flash, L 2.74) scaled to the L = 2.04 to 2.27 published for V4.1; code L = 3.9; JSON and
structured L = 4.5 to 5.3; hard L = 1.1, as an untrained draft.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sgl_ext.speculation.acceptance_trace import RequestTrace, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """chances: by position. sway: how much a text's passages differ,
    as a factor on the odds of a rejection."""

    chances: tuple[float, ...]
    sway: float = 0.0


PROSE = Text(chances=(0.55, 0.62, 0.62, 0.62, 0.60), sway=0.3)
GOOD_PROSE = Text(chances=(0.58, 0.77, 0.71, 0.75, 0.67), sway=0.3)
CODE = Text(chances=(0.88, 0.84, 0.82, 0.80, 0.78), sway=0.5)
JSON = Text(chances=(0.95, 0.92, 0.90, 0.89, 0.88), sway=0.4)
HARD = Text(chances=(0.08, 0.20, 0.20, 0.20, 0.20))
RANDOM_WEIGHTS = Text(chances=(0.01, 0.01, 0.01, 0.01, 0.01))
# Where one token in four or five is accepted, drafting one token is worth next to nothing: the hardest to
# tell.
MARGINAL = Text(chances=(0.22, 0.35, 0.35, 0.35, 0.35))
FADING = Text(chances=(0.72, 0.35, 0.30, 0.25, 0.20), sway=0.2)


class ConfidenceKind:
    """How much the made-up confidence knows:
    nothing recorded, the truth with noise, noise, or the opposite."""

    NONE = "none"
    INFORMATIVE = "informative"
    UNINFORMATIVE = "uninformative"
    OPPOSITE = "opposite"


def draw_runs(text: Text, num_tokens: int, draw: random.Random) -> list[int]:
    """Runs at num_tokens places. Passages of about 40 tokens have their own chances around the text's."""
    runs = []
    factor = 1.0
    for place in range(num_tokens):
        if text.sway and place % 40 == 0:
            factor = 1.0 + text.sway * (2 * draw.random() - 1)
        run = 0
        for chance in text.chances:
            if draw.random() >= max(0.0, 1 - (1 - chance) * factor):
                break
            run += 1
        runs.append(run)
    return runs


def draw_confidence(
    kind: str, runs: Sequence[int], block: int, draw: random.Random
) -> tuple[tuple[int, ...], ...]:
    if kind == ConfidenceKind.NONE:
        return ()
    rows = []
    for run in runs:
        row = []
        for position in range(block):
            value = draw.random()
            if kind != ConfidenceKind.UNINFORMATIVE:
                value = min(1.0, max(0.0, draw.gauss(0.75 if position < run else 0.35, 0.18)))
            row.append(int((1 - value if kind == ConfidenceKind.OPPOSITE else value) * 65535))
        rows.append(tuple(row))
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """phases: (text, tokens) in turn, over and over, within each request; rotate starts each next request at
    the next phase. turns > 1: requests in groups, each going on from the one before."""

    name: str
    phases: tuple[tuple[Text, int], ...]
    num_requests: int
    tokens: int
    confidence: str = ConfidenceKind.NONE
    rotate: bool = False
    turns: int = 1


def draw_trace(recipe: Recipe, seed: int) -> Trace:
    draw = random.Random(f"{recipe.name}/{seed}")
    block = len(recipe.phases[0][0].chances)
    requests = []
    for idx in range(recipe.num_requests):
        start = idx % len(recipe.phases) if recipe.rotate else 0
        phases = _from_phase(recipe.phases, start)
        runs: list[int] = []
        while len(runs) < recipe.tokens:
            text, tokens = next(phases)
            runs += draw_runs(text, min(tokens, recipe.tokens - len(runs)), draw)
        requests.append(
            RequestTrace(
                runs=tuple(runs),
                confidence=draw_confidence(recipe.confidence, runs, block, draw),
                turn_of=idx - 1 if idx % recipe.turns else -1,
            )
        )
    return Trace(name=recipe.name, block=block, requests=tuple(requests))


def _from_phase(phases: Sequence[tuple[Text, int]], start: int) -> Iterator[tuple[Text, int]]:
    idx = start
    while True:
        yield phases[idx % len(phases)]
        idx += 1

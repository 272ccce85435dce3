"""Which candidate all ranks use: pure, from every rank's verdicts, so that all come to the same answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sgl_ext.errors import ExpertBackendError
from sgl_ext.experts.self_check import Verdict

AUTO = "auto"
_HINT = "set extensions.experts.backend of the recipe to one that passed on every rank, or to auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One rank's part of the decision."""

    rank: int
    host: str
    wanted: str  # a backend's name, or auto
    verdicts: tuple[Verdict, ...]

    @property
    def where(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def named(self, name: str) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.name == name), None)


def choose_backend(votes: Sequence[Vote]) -> str:
    """The name that every rank uses. Raises ExpertBackendError naming the rank and the candidate at fault.

    Ranks must have been asked for the same, hold the same packages, and come to the same verdicts: an engine
    whose ranks compute experts differently gives replies that nobody can explain.
    """
    first = votes[0]
    for vote in votes[1:]:
        _require_agreement(first, vote)
    if first.wanted != AUTO:
        return _forced(votes, first.wanted)
    passed = [verdict.name for verdict in first.verdicts if verdict.passed]
    if not passed:
        raise ExpertBackendError(
            f"At least one MXFP4 expert backend must pass its check, got none ({first.where}): "
            f"{_failures(first)}.",
            hint="run `sparkctl logs` for the whole report; the packages are named in docs/experts.md",
        )
    return min(passed, key=lambda name: _cost(votes, name))


def _forced(votes: Sequence[Vote], name: str) -> str:
    for vote in votes:
        verdict = vote.named(name)
        if verdict is None:
            known = ", ".join(item.name for item in vote.verdicts)
            raise ExpertBackendError(
                f"The expert backend must be one of {known} or auto, got {name!r} ({vote.where}).", hint=_HINT
            )
        if not verdict.passed:
            raise ExpertBackendError(
                f"The expert backend {name} must pass its check since the recipe asks for it, got "
                f"{verdict.problem} ({vote.where}).",
                hint=_HINT,
            )
    return name


def _require_agreement(first: Vote, vote: Vote) -> None:
    if vote.wanted != first.wanted:
        raise ExpertBackendError(
            f"Every rank must be asked for the same expert backend, got {first.wanted!r} ({first.where}) and "
            f"{vote.wanted!r} ({vote.where}).",
            hint="start all nodes from one recipe: sparkctl up",
        )
    for left in first.verdicts:
        right = vote.named(left.name)
        if right is None or (right.passed, right.versions) != (left.passed, left.versions):
            raise ExpertBackendError(
                f"Every rank must come to the same verdict on the expert backend {left.name}, got "
                f"{_say(left)} ({first.where}) and {_say(right)} ({vote.where}).",
                hint="install the same packages on both nodes (sparkctl install), or name a backend in "
                "extensions.experts.backend",
            )


def _cost(votes: Sequence[Vote], name: str) -> float:
    """Mean logarithm of the slowest rank's times: no size outweighs another because it takes longer."""
    verdicts = [verdict for vote in votes if (verdict := vote.named(name)) is not None]
    sizes = verdicts[0].times_s
    slowest = [max(verdict.times_s[size] for verdict in verdicts) for size in sizes]
    return sum(math.log(max(seconds, 1e-9)) for seconds in slowest) / len(slowest)


def _say(verdict: Verdict | None) -> str:
    if verdict is None:
        return "no verdict"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(verdict.versions.items()))
    return f"{verdict.problem or 'passed'} with {versions or 'no package'}"


def _failures(vote: Vote) -> str:
    return "; ".join(f"{verdict.name}: {verdict.problem}" for verdict in vote.verdicts)

"""Which candidate all ranks use: pure, from every rank's verdicts, so that all come to the same answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgl_ext.errors import ExpertBackendError, SglExtError
from sgl_ext.experts.self_check import Verdict

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is chosen, for messages. key: of the recipe, where one is named. advice: where another than the
    usual one fits.
    """

    name: str
    kind: str
    key: str
    page: str
    error: type[SglExtError]
    advice: str | None = None

    @property
    def hint(self) -> str:
        return self.advice or f"set {self.key} of the recipe to one that passed on every rank, or to auto"


EXPERTS = Subject(
    name="expert backend",
    kind="MXFP4 expert backend",
    key="extensions.experts.backend",
    page="docs/experts.md",
    error=ExpertBackendError,
)


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


def choose_backend(
    votes: Sequence[Vote], subject: Subject = EXPERTS, *, cost: Callable[[str], float] | None = None
) -> str:
    """The name that every rank uses. Raises the subject's error naming the rank and the candidate at fault.
    cost: what is to be small among those that passed; else their times.

    Ranks must have been asked for the same, hold the same packages, and come to the same verdicts: an engine
    whose ranks compute experts differently gives replies that nobody can explain.
    """
    first = votes[0]
    for vote in votes[1:]:
        _require_agreement(first, vote, subject)
    if first.wanted != AUTO:
        return _forced(votes, first.wanted, subject)
    passed = [verdict.name for verdict in first.verdicts if verdict.passed]
    if not passed:
        raise subject.error(
            f"At least one {subject.kind} must pass its check, got none ({first.where}): {_failures(first)}.",
            hint=f"run `sparkctl logs` for the whole report; the packages are named in {subject.page}",
        )
    return min(passed, key=cost or (lambda name: _cost(votes, name)))


def _forced(votes: Sequence[Vote], name: str, subject: Subject) -> str:
    for vote in votes:
        verdict = vote.named(name)
        if verdict is None:
            known = ", ".join(item.name for item in vote.verdicts)
            raise subject.error(
                f"The {subject.name} must be one of {known} or auto, got {name!r} ({vote.where}).",
                hint=subject.hint,
            )
        if not verdict.passed:
            raise subject.error(
                f"The {subject.name} {name} must pass its check since the recipe asks for it, got "
                f"{verdict.problem} ({vote.where}).",
                hint=subject.hint,
            )
    return name


def _require_agreement(first: Vote, vote: Vote, subject: Subject) -> None:
    if vote.wanted != first.wanted:
        raise subject.error(
            f"Every rank must be asked for the same {subject.name}, got {first.wanted!r} ({first.where}) and "
            f"{vote.wanted!r} ({vote.where}).",
            hint="start all nodes from one recipe: sparkctl up",
        )
    for left in first.verdicts:
        right = vote.named(left.name)
        if right is None or (right.passed, right.versions) != (left.passed, left.versions):
            raise subject.error(
                f"Every rank must come to the same verdict on the {subject.name} {left.name}, got "
                f"{_say(left)} ({first.where}) and {_say(right)} ({vote.where}).",
                hint="install the same packages on both nodes (sparkctl install), or name a backend in "
                f"{subject.key}",
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

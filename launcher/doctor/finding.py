"""What a check finds: problems as the check tells them, findings as people and `up` read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["ok", "warn", "refuse", "not checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`evidence` is what was read and where.
    `why` and `fix` replace the check's own where the case is special."""

    level: Literal["warn", "refuse"]
    node: str
    evidence: str
    why: str | None = None
    fix: str | None = None


def warn(node: str, evidence: str, *, why: str | None = None, fix: str | None = None) -> Problem:
    return Problem(level="warn", node=node, evidence=evidence, why=why, fix=fix)


def refuse(node: str, evidence: str, *, why: str | None = None, fix: str | None = None) -> Problem:
    return Problem(level="refuse", node=node, evidence=evidence, why=why, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`consequence`: what it does to a cluster; `fix`: what to type or change; `page`: where more is said.

    `check` names several, with commas between, where all of them could not look for one reason.
    """

    level: Level
    check: str
    node: str
    evidence: str
    consequence: str = ""
    fix: str = ""

    @property
    def page(self) -> str:
        return f"docs/checks/{self.check.split(', ')[0]}.md"

    @property
    def message(self) -> str:
        """In one sentence, as `up` tells it."""
        return f"{self.evidence}: {self.consequence}" if self.consequence else self.evidence

    @property
    def hint(self) -> str:
        """What `up` itself finds may end in a command to copy, and says all: no page after it."""
        return f"{self.fix} ({self.page})" if self.consequence else self.fix


def merge_not_checked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Checks that could not look for one reason on the same nodes become one finding that names them all."""
    merged: dict[tuple[str, str], Finding] = {}
    found: list[Finding] = []
    for item in findings:
        if item.level != "not checked":
            found.append(item)
            continue
        first = merged.setdefault((item.node, item.evidence), item)
        if item.check not in first.check.split(", "):
            names = f"{first.check}, {item.check}"
            merged[item.node, item.evidence] = replace(first, check=names)
    return (*found, *merged.values())

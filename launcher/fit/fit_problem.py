"""One reason why a recipe does not fit, or fits barely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class FitProblem:
    """`check` is the name that docs/fit.md explains."""

    level: Literal["warn", "refuse"]
    check: str
    message: str
    hint: str

    @classmethod
    def refuse(cls, check: str, message: str, hint: str) -> Self:
        return cls(level="refuse", check=check, message=message, hint=hint)

    @classmethod
    def warn(cls, check: str, message: str, hint: str) -> Self:
        return cls(level="warn", check=check, message=message, hint=hint)

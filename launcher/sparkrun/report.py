"""What a conversion could not carry: each key by name, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCarried:
    """`key` as the source writes it: defaults.port, command: --flag."""

    key: str
    reason: str


# What a shell or an environment would put something else for. Never expanded here.
EXPANDED = ("$", "`")


def expansion_problem(value: object) -> str:
    if isinstance(value, str) and any(mark in value for mark in EXPANDED):
        return "shell or environment expansion is not carried out: write the value itself"
    return ""

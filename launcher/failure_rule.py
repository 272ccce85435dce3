"""One failure message of the engine: how it is recognised, what it proves, what it means, what to do next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """How much a message proves. Lower wins."""

    CAUSE = 0  # says itself what went wrong
    UNKNOWN = 1  # an exception that no rule knows and that is not about the network
    DEATH = 2  # a process was killed; the reason is outside the log
    NETWORK = 3  # a peer or the fabric is gone; the cause is on another rank when one has anything to say
    WARNING = 4  # the engine went on; counts only when nothing else is found
    NOISE = 5  # always follows from something else


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    weight: Weight
    pattern: re.Pattern[str]
    explanation: str
    hint: str


def make_rule(rule_id: str, weight: Weight, pattern: str, explanation: str, hint: str) -> Rule:
    """Texts may use {node}, {rank} and the named groups of `pattern`."""
    return Rule(id=rule_id, weight=weight, pattern=re.compile(pattern), explanation=explanation, hint=hint)

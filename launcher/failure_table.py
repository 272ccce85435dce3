"""All failure messages that are known, in the order in which they are tried."""

from __future__ import annotations

import re

from launcher.failure_causes import CAUSES
from launcher.failure_consequences import DEATHS, NETWORK, NOISE, WARNINGS
from launcher.failure_rule import Rule

RULES: tuple[Rule, ...] = (NOISE, *CAUSES, *DEATHS, *NETWORK, *WARNINGS)

# These begin lines that come by the thousand and never tell a failure.
_ROUTINE = ("Decode batch", "Prefill batch", "INFO:", "server_args=", "Ignore import error")
# A failure message names itself at its start; the rest of a very long line is a dump.
_MAX_CHARS = 4000


def find_rule(text: str) -> tuple[Rule, re.Match[str]] | None:
    """The first rule that knows `text`, a line without its prefix, and the match."""
    if text.startswith(_ROUTINE):
        return None
    text = text[:_MAX_CHARS]
    for rule in RULES:
        if match := rule.pattern.search(text):
            return rule, match
    return None

"""Answers of a node: one JSON object a line on stdout; refusals with a hint."""

from __future__ import annotations

import json
import sys
from typing import Any


class Refused(Exception):
    """The request cannot be carried out on this node, for a reason the user can act on."""

    def __init__(self, message: str, hint: str = "", detail: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail or {}


def answer(value: dict[str, Any]) -> None:
    """Write one line and flush: the launcher reads lines as they come."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()

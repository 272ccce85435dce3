"""Pure: the lines of an engine's log that a person should see. What is in a log is not to be trusted."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from launcher.engine_log import LogLine, parse_line
from launcher.failure_rule import Weight
from launcher.failure_table import find_rule

KEEP_LINES = 50
MAX_CHARS = 400

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
# A line that begins with a level, or with the name of an exception.
_LEVEL = re.compile(r"^(?:ERROR|CRITICAL|FATAL)\b|^[A-Za-z_][\w.]{0,80}(?:Error|Exception)\b:")

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLine:
    """`time`: the node's local time as its log has it; empty where the line has none. `hint`: what to do."""

    node: str
    level: Level
    text: str
    time: str = ""
    hint: str = ""
    num_times: int = 1


class ErrorReader:
    """Feed it every line of one node's log. Keeps the newest; the same text again only counts.

    `mask`: takes secrets out of a line.
    """

    def __init__(self, node: str, rank: int, mask: Callable[[str], str]) -> None:
        self._node = node
        self._rank = rank
        self._mask = mask
        self._found: deque[ErrorLine] = deque(maxlen=KEEP_LINES)
        self._is_in_traceback = False
        self._time: datetime | None = None

    @property
    def newest(self) -> tuple[ErrorLine, ...]:
        return tuple(self._found)

    def feed(self, line: str) -> None:
        parsed = parse_line(line, year=self._time.year if self._time else 0)
        self._time = parsed.time or self._time
        found = self._judge(line, parsed)
        if found is not None:
            self._keep(*found)

    def _judge(self, line: str, parsed: LogLine) -> tuple[Level, str, str] | None:
        text = parsed.text.strip()
        if _TRACEBACK in line:
            self._is_in_traceback = True
            return None
        if self._is_in_traceback:
            if line[:1].isspace():
                return None
            self._is_in_traceback = False
            if not parsed.is_record and _EXCEPTION.match(text):
                return ("error", text, self._hint_of(text))
        rule = find_rule(text)
        if rule is not None and rule[0].weight is not Weight.NOISE:
            level: Level = "warning" if rule[0].weight is Weight.WARNING else "error"
            return (level, text, self._hint_of(text))
        return ("error", text, "") if _LEVEL.match(text) else None

    def _hint_of(self, text: str) -> str:
        found = find_rule(text)
        if found is None:
            return ""
        words = {key: value or "" for key, value in found[1].groupdict().items()}
        return found[0].hint.format_map({**words, "node": self._node, "rank": self._rank})

    def _keep(self, level: Level, text: str, hint: str) -> None:
        shown = self._mask(text[: 4 * MAX_CHARS])
        shown = shown if len(shown) <= MAX_CHARS else shown[:MAX_CHARS] + " ..."
        time = self._time.strftime("%Y-%m-%d %H:%M:%S") if self._time else ""
        for known in self._found:
            if known.text == shown:
                self._found.remove(known)
                self._found.append(replace(known, time=time, num_times=known.num_times + 1))
                return
        self._found.append(
            ErrorLine(node=self._node, level=level, text=shown, time=time, hint=self._mask(hint)[:MAX_CHARS])
        )


def merge_errors(errors: list[ErrorLine], most: int) -> list[ErrorLine]:
    """Newest first. A line without a time comes last."""
    return sorted(errors, key=lambda error: error.time, reverse=True)[:most]

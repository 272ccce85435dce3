"""Reads the log of one rank for everything that may tell why it, or its cluster, failed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from launcher.engine_log import LogLine, parse_line
from launcher.failure_rule import Weight
from launcher.failure_table import RULES, find_rule

NUM_LAST_LINES = 20

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(
    r"^(?:During handling of the above exception, another|The above exception was the direct cause of)"
)
# The last line of a traceback: the exception's type and text.
_EXCEPTION = re.compile(r"^(?!INFO:|WARNING:|ERROR:|DEBUG:)[A-Za-z_][\w.]*(?::|$)")
_KILLED_CHILD = re.compile(r"terminated with -\d+|crashed with exit code -\d+")
_KILLED_ITSELF = re.compile(r"kill_process_tree called: .*include_parent=True")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One line that may be the cause. `is_after_network`: this rank had lost a peer before it came."""

    case: str
    weight: Weight
    rule_idx: int
    line: str
    line_idx: int
    time: datetime | None
    explanation: str
    hint: str
    words: Mapping[str, str]
    is_after_network: bool


@dataclass(slots=True, kw_only=True)
class RankLog:
    sightings: list[Sighting] = field(default_factory=list)
    last_lines: tuple[str, ...] = ()
    killed_child: str = ""
    killed_itself: bool = False

    @property
    def says_nothing_of_its_end(self) -> bool:
        return not self.killed_itself and all(s.weight >= Weight.WARNING for s in self.sightings)


def read_rank_log(lines: Iterable[str]) -> RankLog:
    """Reads once, front to back; keeps a bounded amount."""
    reader = _Reader()
    for line_idx, line in enumerate(lines):
        reader.feed(line_idx, line)
    reader.log.last_lines = tuple(reader.last_lines)
    return reader.log


class _Reader:
    def __init__(self) -> None:
        self.log = RankLog()
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._time: datetime | None = None
        self._is_in_traceback = False
        self._has_lost_peer = False
        self._seen: set[tuple[str, str]] = set()

    def feed(self, line_idx: int, line: str) -> None:
        if line.strip():
            self.last_lines.append(line)
        parsed = parse_line(line, year=self._time.year if self._time else 0)
        self._time = parsed.time or self._time
        if _KILLED_CHILD.search(parsed.text):
            self.log.killed_child = self.log.killed_child or parsed.text.strip()
        self.log.killed_itself = self.log.killed_itself or bool(_KILLED_ITSELF.search(parsed.text))
        is_exception = self._ends_traceback(parsed)
        if self._is_in_traceback and line[:1].isspace():
            return  # a source line that names an exception is not that exception
        if _TRACEBACK in line:
            self._is_in_traceback = True
        elif _CHAINED.match(line):
            self._forget_handled()
        for text in (parsed.before, parsed.text):
            if text:
                self._look_at(line_idx, text.strip(), is_exception=is_exception)

    def _ends_traceback(self, parsed: LogLine) -> bool:
        if not self._is_in_traceback or parsed.is_record or not _EXCEPTION.match(parsed.text):
            return False
        self._is_in_traceback = False
        return True

    def _forget_handled(self) -> None:
        """Of a chain of exceptions the last one counts, unless an earlier one is known to be a cause."""
        if self.log.sightings and self.log.sightings[-1].weight is Weight.UNKNOWN:
            self.log.sightings.pop()

    def _look_at(self, line_idx: int, text: str, *, is_exception: bool) -> None:
        found = find_rule(text)
        if found:
            rule, match = found
            if rule.weight is not Weight.NOISE and (rule.id, text) not in self._seen:
                self._seen.add((rule.id, text))
                words = {name: value or "?" for name, value in match.groupdict().items()}
                self._add(
                    line_idx,
                    text,
                    rule.id,
                    rule.weight,
                    RULES.index(rule),
                    rule.explanation,
                    rule.hint,
                    words,
                )
            self._has_lost_peer = self._has_lost_peer or (is_exception and rule.weight is Weight.NETWORK)
        elif is_exception:
            self._add(
                line_idx,
                text,
                "exception",
                Weight.UNKNOWN,
                len(RULES),
                "The engine on {node} failed with an exception that sparkctl does not know.",
                "`sparkctl logs` shows the traceback above this line.",
                {},
            )

    def _add(
        self,
        line_idx: int,
        text: str,
        case: str,
        weight: Weight,
        rule_idx: int,
        explanation: str,
        hint: str,
        words: Mapping[str, str],
    ) -> None:
        self.log.sightings.append(
            Sighting(
                case=case,
                weight=weight,
                rule_idx=rule_idx,
                line=text,
                line_idx=line_idx,
                time=self._time,
                explanation=explanation,
                hint=hint,
                words=words,
                is_after_network=self._has_lost_peer,
            )
        )

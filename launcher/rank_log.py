"""Reads the log of one rank for everything that may tell why it, or its cluster, failed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from launcher.engine_log import LogLine, parse_line
from launcher.failure_rule import Weight
from launcher.failure_table import RULES, find_rule

NUM_LAST_LINES = 20

# Once a rank is ready it lives on after many exceptions, such as those of single requests. Only what was
# logged this close to its end can have ended it. The longest way from cause to end: a lost peer is noticed at
# once, but the engine spends 5 s on settling and 60 s on waiting for core dumps before it ends.
FATAL_WINDOW_S = 180.0
# Bounds the memory for a log that repeats a message for days.
MAX_SIGHTINGS = 1000
# What follows so soon after the loss of a peer follows from it.
AFTER_NETWORK_S = 30.0

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(
    r"^(?:During handling of the above exception, another|The above exception was the direct cause of)"
)
# The last line of a traceback: the exception's type and text.
_EXCEPTION = re.compile(r"^(?!INFO:|WARNING:|ERROR:|DEBUG:)[A-Za-z_][\w.]*(?::|$)")
_READY = re.compile(
    r"^The server is fired up and ready to roll!|^Dummy health check server started in background"
)
# Exceptions under these headings end one request or task, not the engine.
_NOT_FATAL = re.compile(r"Exception in ASGI application|exception was never retrieved|^Exception ignored in")
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
    has_lost_peer: bool = False

    @property
    def says_nothing_of_its_end(self) -> bool:
        has_own_cause = any(s.weight <= Weight.DEATH for s in self.sightings)
        return not (self.killed_itself or self.has_lost_peer or has_own_cause)


def read_rank_log(lines: Iterable[str]) -> RankLog:
    """Reads once, front to back; keeps a bounded amount."""
    reader = _Reader()
    for line_idx, line in enumerate(lines):
        reader.feed(line_idx, line)
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self.log = RankLog()
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._time: datetime | None = None
        self._is_in_traceback = False
        self._is_fatal_traceback = True
        self._is_ready = False
        self._lost_peer_at: datetime | None = None
        self._warned: set[str] = set()

    def feed(self, line_idx: int, line: str) -> None:
        if line.strip():
            self.last_lines.append(line)
        parsed = parse_line(line, year=self._time.year if self._time else 0)
        self._time = parsed.time or self._time
        if _KILLED_CHILD.search(parsed.text):
            self.log.killed_child = self.log.killed_child or parsed.text.strip()
        self.log.killed_itself = self.log.killed_itself or bool(_KILLED_ITSELF.search(parsed.text))
        if _READY.match(parsed.text):
            self._start_serving()
        is_exception = self._ends_traceback(parsed)
        if self._is_in_traceback and line[:1].isspace():
            return  # a source line that names an exception is not that exception
        if _TRACEBACK in line:
            self._is_in_traceback = True
        elif _CHAINED.match(line):
            self._forget_handled()
        if _NOT_FATAL.search(line):
            self._is_fatal_traceback = False
        elif parsed.is_record:
            self._is_fatal_traceback = True
        if not self._is_fatal_traceback:
            return
        for text in (parsed.before, parsed.text):
            if text:
                self._look_at(line_idx, text.strip(), is_exception=is_exception)

    def _ends_traceback(self, parsed: LogLine) -> bool:
        if not self._is_in_traceback or parsed.is_record or not _EXCEPTION.match(parsed.text):
            return False
        self._is_in_traceback = False
        return True

    def _start_serving(self) -> None:
        """What came before did not stop the rank from becoming ready; only warnings stay of interest."""
        self._is_ready = True
        self._lost_peer_at = None
        self.log.has_lost_peer = False
        self.log.sightings = [s for s in self.log.sightings if s.weight is Weight.WARNING]

    def finish(self) -> RankLog:
        self.log.last_lines = tuple(self.last_lines)
        self._drop_survived()
        return self.log

    def _drop_survived(self) -> None:
        if self._is_ready and self._time:
            oldest = self._time - timedelta(seconds=FATAL_WINDOW_S)
            self.log.sightings = [s for s in self.log.sightings if s.time is None or s.time >= oldest]

    @property
    def _is_after_network(self) -> bool:
        if self._lost_peer_at is None or self._time is None:
            return self.log.has_lost_peer and self._lost_peer_at is None
        return self._time - self._lost_peer_at <= timedelta(seconds=AFTER_NETWORK_S)

    def _forget_handled(self) -> None:
        """Of a chain of exceptions the last one counts, unless an earlier one is known to be a cause."""
        if self.log.sightings and self.log.sightings[-1].weight is Weight.UNKNOWN:
            self.log.sightings.pop()

    def _look_at(self, line_idx: int, text: str, *, is_exception: bool) -> None:
        found = find_rule(text)
        if found:
            rule, match = found
            if rule.weight is not Weight.NOISE and rule.id not in self._warned:
                if rule.weight is Weight.WARNING:
                    self._warned.add(rule.id)
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
            if is_exception and rule.weight is Weight.NETWORK:
                self.log.has_lost_peer = True
                self._lost_peer_at = self._time
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
        if len(self.log.sightings) >= MAX_SIGHTINGS:
            self._drop_survived()
        if len(self.log.sightings) >= MAX_SIGHTINGS:
            return
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
                is_after_network=self._is_after_network,
            )
        )

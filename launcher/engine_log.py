"""Reads one line of an SGLang engine's log: who wrote it, when, and what it says.

The engine writes "[2026-09-11 23:34:13 TP0 EP0] text" from a scheduler and the same without rank words from
its main process. A progress bar may stand before the bracket on the same line. torch's C++ code writes
"[rank0]:[E1129 16:38:21.612811004 file.cpp:12] text" (no year), and tracebacks come bare.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

_RECORD = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,](\d{3}))?((?: [A-Z][A-Z_]*\d+)*)\] ?")
_CPP_RECORD = re.compile(
    r"^(?:\[rank(\d+)\]:)?\[[EWIF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\d* [^\]]*\] ?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """`time` is the node's local time, None where there is none. `before` stood before the bracket."""

    text: str
    time: datetime | None = None
    rank_words: tuple[str, ...] = ()
    before: str = ""

    @property
    def is_record(self) -> bool:
        """False for tracebacks, progress bars, compiler output: all that has no prefix of the engine."""
        return self.time is not None


def parse_line(line: str, *, year: int = 0) -> LogLine:
    """Never fails: a line of no known form comes back whole as `text`.

    `year` completes the torch C++ form, which has none; with year=0 such a line has no time.
    """
    record = _RECORD.search(line)
    if record:
        moment = _read_time(record[1], record[2])
        if moment:
            return LogLine(
                text=line[record.end() :],
                time=moment,
                rank_words=tuple(record[3].split()),
                before=line[: record.start()].rstrip(),
            )
    cpp = _CPP_RECORD.match(line)
    if cpp:
        words = (f"RANK{cpp[1]}",) if cpp[1] else ()
        return LogLine(text=line[cpp.end() :], time=_read_cpp_time(cpp, year), rank_words=words)
    return LogLine(text=line)


def _read_time(text: str, milliseconds: str | None) -> datetime | None:
    try:
        moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None  # digits that are no date, such as [9999-99-99 ...] in a prompt that was logged
    return moment.replace(microsecond=int(milliseconds) * 1000) if milliseconds else moment


def _read_cpp_time(match: re.Match[str], year: int) -> datetime | None:
    if not year:
        return None
    month, day, hour, minute, second, micro = (int(match[i]) for i in range(2, 8))
    try:
        return datetime(year, month, day, hour, minute, second, micro)
    except ValueError:
        return None

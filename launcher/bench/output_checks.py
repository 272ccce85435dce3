"""Is an answer text at all? A broken kernel or a wrong draft shows as silence,
symbols or a loop, at full speed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from launcher.bench.errors import BenchInvalid
from launcher.bench.send import CUT
from launcher.bench.wave import Wave
from launcher.results.records import RequestRecord

REPLACEMENT = "\ufffd"
# One may be half a character at the end of the answer; three are none of the model's.
MOST_REPLACEMENTS = 2
SYMBOL_RUN = re.compile(r"([^\w\s])\1{79,}")
MOST_ODD_SHARE = 0.2
# Below this many characters a loop is a list.
LEAST_LOOP_CHARS = 240
LEAST_LOOPS = 6


def output_problem(record: RequestRecord, *, may_be_short: bool = False) -> tuple[str, str] | None:
    """(kind, what was seen); None for text. Pure."""
    if record.error is not None:
        return None
    text = record.output_text
    if not record.completion_tokens or not (text.strip() or record.tool_calls):
        seen = f"{record.completion_tokens} tokens, text {text[:20]!r}"
        return None if may_be_short and record.completion_tokens else ("empty", seen)
    garbled = _garbled(text)
    if garbled:
        return "garbled", garbled
    loop = repeated_unit(text)
    return ("repeated", f"{loop[1]} times {loop[0][:40]!r}") if loop and not may_be_short else None


def _garbled(text: str) -> str | None:
    if text.count(REPLACEMENT) > MOST_REPLACEMENTS:
        return f"{text.count(REPLACEMENT)} replacement characters in {len(text)}"
    run = SYMBOL_RUN.search(text)
    if run:
        return f"{len(run[0])} times {run[1]!r} in a row"
    odd = sum(unicodedata.category(letter) in ("Cc", "Cn", "Co", "Cs") for letter in text)
    odd -= sum(map(text.count, "\n\r\t"))
    if len(text) >= 20 and odd > MOST_ODD_SHARE * len(text):
        return f"{odd} control or unassigned characters in {len(text)}"
    return None


def repeated_unit(text: str) -> tuple[str, int] | None:
    """(unit, times) when the end of the text is one passage over and over.
    Counting up is no loop: its numbers differ.
    """
    tail = text[-4000:].rstrip()
    if len(tail) < LEAST_LOOP_CHARS:
        return None
    for size in range(1, len(tail) // LEAST_LOOPS + 1):
        unit = tail[-size:]
        if not unit.strip(" -=_*#|\n"):
            continue  # a ruler or a table's border; SYMBOL_RUN judges those
        times = 1
        while tail.endswith(unit * (times + 1)):
            times += 1
        if times >= LEAST_LOOPS and times * size >= LEAST_LOOP_CHARS:
            return unit, times
    return None


def refuse_bad_output(wave: Wave, records: list[RequestRecord], allow: Collection[str]) -> list[str]:
    """Raises BenchInvalid; returns notes on what `allow` let pass."""
    short = {ask.name for ask in wave.asks if ask.may_be_short}
    forced = {ask.name for ask in wave.asks if ask.body.get("ignore_eos")}
    notes = []
    for record in records:
        name = record.request_id.rsplit("-", 1)[-1]
        if name in forced:
            _refuse_another_length(wave, record)
        found = output_problem(record, may_be_short=name in short)
        if found is None:
            continue
        kind, seen = found
        if kind in allow:
            notes.append(f"{wave.suite} {record.case}: {kind} output was allowed")
            continue
        raise BenchInvalid(
            f"{wave.name} must be answered with text, got {kind} output: {seen} (request"
            f" {record.request_id})",
            hint=f"look at it in requests.jsonl; a model that means nothing: --allow {kind}",
        )
    return notes


def _refuse_another_length(wave: Wave, record: RequestRecord) -> None:
    """A server that does not know `ignore_eos` measures answers of its own length."""
    if record.error is None and record.finish_reason != CUT and record.completion_tokens != record.max_tokens:
        raise BenchInvalid(
            f"{wave.name} must be answered with {record.max_tokens} tokens (--force-length), got"
            f" {record.completion_tokens} (request {record.request_id})",
            hint="this server does not heed ignore_eos, or its context ended: measure without --force-length",
        )

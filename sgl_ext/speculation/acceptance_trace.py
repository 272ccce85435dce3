"""A trace: what a draft would have got right at each place of a text, so that any width can be run on it.

runs[p] is how many draft tokens, drafted after p tokens of the answer, the target would have accepted with
the whole block verified. A width of w accepts min(w, runs[p]) and goes on at p + 1 + that. Recorded and
generated traces look the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgl_ext.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """One answer. confidence[p]: of the block drafted at p, 0 to 65,535 a position; empty where none was
    recorded. turn_of: position in the trace of the conversation's earlier turn, or -1."""

    runs: tuple[int, ...]
    confidence: tuple[tuple[int, ...], ...] = ()
    turn_of: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    name: str
    block: int
    requests: tuple[RequestTrace, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(request.runs) for request in self.requests)


def read_trace(path: Path) -> Trace:
    """A trace recorded as JSON lines: {"block": 5} first, then {"runs": [...], "confidence": [[...]],
    "turn_of": -1} a request."""
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        block = json.loads(lines[0])["block"]
        requests = tuple(_read_requests(lines[1:], block))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise SettingError(
            f'{path} must hold {{"block": N}} and then one {{"runs": [...]}} a line, got {error!r}.',
            hint="record it again, or give the file of another run",
        ) from error
    return Trace(name=path.stem, block=block, requests=requests)


def write_trace(path: Path, trace: Trace) -> None:
    lines = [json.dumps({"block": trace.block})]
    for request in trace.requests:
        entry: dict[str, object] = {"runs": request.runs, "turn_of": request.turn_of}
        if request.confidence:
            entry["confidence"] = request.confidence
        lines.append(json.dumps(entry, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read_requests(lines: Sequence[str], block: int) -> Iterator[RequestTrace]:
    for line in lines:
        entry = json.loads(line)
        runs = tuple(int(run) for run in entry["runs"])
        confidence = tuple(tuple(int(value) for value in row) for row in entry.get("confidence", ()))
        if any(not 0 <= run <= block for run in runs) or (confidence and len(confidence) != len(runs)):
            raise ValueError("a run beyond the block, or confidence of another length")
        yield RequestTrace(runs=runs, confidence=confidence, turn_of=int(entry.get("turn_of", -1)))

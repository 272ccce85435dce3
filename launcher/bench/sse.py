"""Server-sent events out of timed pieces of a byte stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

DONE = b"[DONE]"


def read_events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """(arrival, payload) of each event, when its last byte came. An unfinished event at the end is dropped:
    the connection broke in it. Comment lines and other fields are skipped, several data lines are joined.
    """
    rest = b""
    data: list[bytes] = []
    for arrived_s, piece in pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for raw in lines:
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and data:
                yield arrived_s, b"\n".join(data)
                data = []

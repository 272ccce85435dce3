"""Real text without end for long prompts: the source and documentation of this Python's standard library.

It is on every machine that runs sparkctl, has a licence that allows it, reads like code and manuals, and no
part of it repeats within one prompt. Its hash goes into the manifest; another Python version gives other
prompts.
"""

from __future__ import annotations

import hashlib
import random
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LEFT_OUT = (
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "idlelib",
    "lib2to3",
    "encodings",
)
_PIECE_CHARS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """`pieces`: passages of whole lines, a few thousand characters each."""

    pieces: tuple[str, ...]
    sha256: str

    @property
    def num_chars(self) -> int:
        return sum(map(len, self.pieces))

    def text(self, num_chars: int, seed: str) -> str:
        """Exactly `num_chars`: passages in an order of their own for each seed, the first line too, so that
        no two prompts share a prefix. A text longer than the corpus goes round again in another order.
        """
        order = random.Random(seed)
        parts = [f"Collected notes, volume {hashlib.sha256(seed.encode()).hexdigest()[:16]}.\n\n"]
        length = len(parts[0])
        while length < num_chars:
            for piece in order.sample(self.pieces, len(self.pieces)):
                parts.append(piece)
                length += len(piece)
                if length >= num_chars:
                    break
        return "".join(parts)[:num_chars]


@cache
def read_corpus() -> Corpus:
    root = Path(sysconfig.get_paths()["stdlib"])
    pieces: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if not set(path.relative_to(root).parts[:-1]).intersection(_LEFT_OUT):
            pieces.extend(_cut(path.read_bytes()))
    digest = hashlib.sha256("\0".join(pieces).encode()).hexdigest()
    return Corpus(pieces=tuple(pieces), sha256=digest)


def _cut(raw: bytes) -> list[str]:
    """ASCII only: another alphabet would change the tokens of a character in the middle of a prompt."""
    if not raw.isascii():
        return []
    pieces, current = [], ""
    for line in raw.decode("ascii").splitlines(keepends=True):
        current += line
        if len(current) >= _PIECE_CHARS:
            pieces.append(current)
            current = ""
    return [*pieces, current] if current.strip() else pieces

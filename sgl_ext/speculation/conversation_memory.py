"""What a conversation's earlier turns taught, found again by the tokens they share:
bounded, same on every rank."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """chances: acceptance by position when the request ended; probe_interval: plain steps between its
    trials, or None where drafting paid to the end."""

    chances: tuple[int, ...]
    probe_interval: int | None


class ConversationMemory:
    """Page key -> lesson. The least recently used entries go first; order comes from the calls alone."""

    def __init__(self, max_entries: int) -> None:
        self._lessons: OrderedDict[bytes, Lesson] = OrderedDict()
        self._max_entries = max_entries

    def __len__(self) -> int:
        return len(self._lessons)

    def find(self, keys: Sequence[bytes]) -> Lesson | None:
        """The lesson of the longest known beginning. keys: of the request's pages, the first page first."""
        for key in reversed(keys):
            lesson = self._lessons.get(key)
            if lesson is not None:
                self._lessons.move_to_end(key)
                return lesson
        return None

    def keep(self, keys: Iterable[bytes], lesson: Lesson) -> None:
        for key in keys:
            self._lessons[key] = lesson
            self._lessons.move_to_end(key)
        while len(self._lessons) > self._max_entries:
            self._lessons.popitem(last=False)


def page_keys(token_ids: Sequence[int]) -> tuple[bytes, ...]:
    """A key for each full page of tokens, of all tokens up to its end: equal keys mean an equal beginning.

    The next turn's prompt begins with this turn's prompt, and usually with its answer, whether or not the
    prefix cache still holds them.
    """
    digest = hashlib.blake2b(digest_size=16)
    keys = []
    for end in range(PAGE_TOKENS, len(token_ids) + 1, PAGE_TOKENS):
        page = array("i", token_ids[end - PAGE_TOKENS : end])
        assert page.itemsize == 4
        digest.update(page.tobytes())
        keys.append(digest.copy().digest())
    return tuple(keys)

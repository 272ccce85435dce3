"""Masks secrets in a byte stream, such as an engine's log on its way into a file.

Two nets. The secrets that are known are found in any spelling that a program gives them: as they are, inside
Python repr or JSON, URL-escaped, or any mixture. And values that look like a secret are masked wherever they
stand: api_key='...', "api_key": "...", --api-key ..., Bearer ..., hf_..., user:password@ in a URL.

This file is shipped to the nodes on its own: it imports the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MASK = b"***"

# Shorter ones would be found inside ordinary words, and masking those makes a log unreadable.
MIN_SECRET_CHARS = 8
MAX_SECRET_CHARS = 512

# Longest value that the patterns below take for a secret.
_MAX_VALUE_BYTES = 2048
# An unfinished line is held back whole up to here. The engine's longest ordinary line has about 25 kB.
_MAX_HELD_BYTES = 256 * 1024
# At a crash a secret can be cut off; so much of its start still counts as the secret.
_MIN_PREFIX_CHARS = 4

_NAMES = (
    rb"(?:[a-z0-9]{1,32}[_-]){0,4}(?:api[_-]?key|access[_-]?key|secret[_-]?key|hf[_-]token|auth[_-]?token"
    rb"|access[_-]token|hub[_-]token|password|passwd|keyfile[_-]password|client[_-]secret)"
)
_GENERIC = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # name='value', "name": "value", 'name': b'value', '--name', 'value'; the quotes may be escaped
        rb"\b"
        + _NAMES
        + rb"\\{0,8}[\"']?\s{0,8}[=:,]\s{0,8}b?(?P<q>\\{0,8}[\"'])"
        + rb"(?P<value>(?:(?!(?P=q))(?:\\[\"'\\]|[^\r\n])){1,%d})" % _MAX_VALUE_BYTES,
        # name=value, --name value
        rb"\b"
        + _NAMES
        + rb"(?:=|(?<=-key) )(?P<value>[^\s\"',;&})\]\\-][^\s\"',;&})\]\\]{0,%d})" % _MAX_VALUE_BYTES,
        rb"\bBearer(?: |%%20|\+)(?P<value>[A-Za-z0-9._~+/=%%-]{6,%d})" % _MAX_VALUE_BYTES,
        rb"\b(?P<value>hf_[A-Za-z0-9]{16,256})\b",
        rb"://(?P<value>[^\s/@:\"']{1,256}:[^\s/@\"']{1,256})@",
    )
)
_NO_VALUES = frozenset((b"none", b"null", b"true", b"false", MASK))


class Masker:
    """Feed it chunks in order; `finish` gives what it still holds. Output differs from input by masks only.

    Secrets must have 8 to 512 characters and no control characters: ValueError otherwise.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        for secret in secrets:
            _check_secret(secret)
        self._secrets = tuple(sorted(set(secrets), key=len, reverse=True))
        self._patterns = tuple(re.compile(_spell(secret)) for secret in self._secrets)
        longest = max((_max_spelled_bytes(secret) for secret in self._secrets), default=0)
        self._tail_bytes = max(longest, _MAX_VALUE_BYTES + 1024)
        self._held_limit = max(_MAX_HELD_BYTES, 4 * self._tail_bytes)
        self._held = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Returns what is safe to pass on: complete lines (ended by \\n or \\r), masked."""
        self._held += chunk
        end = max(self._held.rfind(b"\n"), self._held.rfind(b"\r")) + 1
        out = bytearray()
        if end:
            out += self._mask_block(bytes(self._held[:end]))
            del self._held[:end]
        while len(self._held) > self._held_limit:
            window = bytes(self._held[: self._held_limit])
            masked, num_done = self._mask_up_to(window, len(window) - self._tail_bytes)
            out += masked
            del self._held[:num_done]
        return bytes(out)

    def finish(self) -> bytes:
        """Returns the rest. A secret that is cut off at the very end is masked as well."""
        rest = self._mask_block(bytes(self._held))
        self._held.clear()
        return self._mask_cut_off(rest)

    def mask(self, text: str) -> str:
        """Masks one finished text. Does not touch what was fed."""
        # surrogatepass: any str goes through, a lone surrogate of a hostile YAML file as well.
        return self._mask_block(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def _mask_block(self, block: bytes) -> bytes:
        return self._mask_up_to(block, len(block))[0]

    def _mask_up_to(self, block: bytes, limit: int) -> tuple[bytes, int]:
        """Masks what starts before `limit`; returns it and how many bytes of `block` it covers."""
        out = bytearray()
        position = 0
        for start, end in _merge(self._find(block)):
            if start >= limit:
                break
            out += block[position:start] + MASK
            position = end
        if position < limit:
            out += block[position:limit]
            position = limit
        return bytes(out), position

    def _find(self, block: bytes) -> Iterable[tuple[int, int]]:
        for pattern in self._patterns:
            for match in pattern.finditer(block):
                yield match.span()
        for pattern in _GENERIC:
            for match in pattern.finditer(block):
                if match["value"].lower() not in _NO_VALUES:
                    yield match.span("value")

    def _mask_cut_off(self, block: bytes) -> bytes:
        for secret in self._secrets:
            tail_start = max(0, len(block) - self._tail_bytes)
            for num_chars in range(len(secret) - 1, _MIN_PREFIX_CHARS - 1, -1):
                cut = re.compile(_spell(secret[:num_chars]) + rb"\Z").search(block, tail_start)
                if cut:
                    return block[: cut.start()] + MASK
        return block


def mask_text(text: str, secrets: Sequence[str]) -> str:
    """Masks one finished text, for messages and reports."""
    return Masker(secrets).mask(text)


def _check_secret(secret: str) -> None:
    if not MIN_SECRET_CHARS <= len(secret) <= MAX_SECRET_CHARS:
        raise ValueError(
            f"A secret to mask must have {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} characters,"
            f" got {len(secret)}."
        )
    # No key with one can be sent in an HTTP header, and each writer spells them its own way.
    if any(char < " " or char == "\x7f" for char in secret):
        raise ValueError("A secret to mask must have no control characters, got one with some.")


def _merge(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _spell(secret: str) -> bytes:
    """A pattern that matches `secret` however each of its characters is written."""
    # A run of backslashes is one unit: one by one, each with a repeat of its own, it splits in endless ways.
    return b"".join(
        rb"(?:\\{%d,%d}|(?:%%(?:25)?5[cC]){%d})" % (len(unit), 8 * len(unit), len(unit))
        if unit[0] == "\\"
        else _spell_char(unit)
        for unit in re.findall(r"\\+|[^\\]", secret)
    )


def _spell_char(char: str) -> bytes:
    raw = char.encode("utf-8", "surrogatepass")
    code = ord(char)
    options: list[bytes] = [re.escape(raw)]
    # URL-escaped once or twice, and a blank as "+"
    options.append(b"".join(rb"%%(?:25)?%s" % _any_case(f"{byte:02x}") for byte in raw))
    # \u00e9 of JSON, \xe9 of a repr, \xc3\xa9 of the repr of bytes, the backslash perhaps escaped again
    units = char.encode("utf-16-be", "surrogatepass")
    options.append(
        b"".join(rb"\\{1,8}u" + _any_case(units[i : i + 2].hex()) for i in range(0, len(units), 2))
    )
    options.append(b"".join(rb"\\{1,8}x" + _any_case(f"{byte:02x}") for byte in raw))
    if code < 256:
        options.append(rb"\\{1,8}x" + _any_case(f"{code:02x}"))
    if code > 0xFFFF:
        options.append(rb"\\{1,8}U" + _any_case(f"{code:08x}"))
    if char == " ":
        options.append(rb"\+")
    if char == "'":
        options += [rb"'\"'\"'", rb"'\\''", rb"&#(?:39|x27);"]
    if char in '&<>"':
        options.append({"&": b"&amp;", "<": b"&lt;", ">": b"&gt;", '"': b"&(?:quot|#34);"}[char])
    if char in "\"'/`$":
        options.append(rb"\\{1,8}" + re.escape(raw))
    # The longer spellings first: an alternation takes the first that fits.
    options.sort(key=len, reverse=True)
    return b"(?:" + b"|".join(options) + b")"


def _any_case(digits: str) -> bytes:
    return b"".join(f"[{d}{d.upper()}]".encode() if d.isalpha() else d.encode() for d in digits)


def _max_spelled_bytes(secret: str) -> int:
    # The widest spelling of a character: eight backslashes, "U" and eight digits; or four UTF-8 bytes as
    # \\\\\\\\xNN each.
    return 48 * len(secret)

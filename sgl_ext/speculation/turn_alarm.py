"""Notices that a request's text has turned against the draft (Page's CUSUM test).

Each trial adds the log likelihood ratio of "a third of the estimated chance" against "the estimated chance";
the sum is held at zero from below. It alarms at 7.5 bits, so by chance less than once in 2^7.5 = 181 trials.
"""

from __future__ import annotations

from sgl_ext.speculation.fixed_point import ONE

_BITS = 256  # units of a bit
_THRESHOLD = 15 * _BITS // 2
_LEVELS = 64


class TurnAlarm:
    __slots__ = ("_evidence",)

    def __init__(self) -> None:
        self._evidence = 0

    def observe(self, chance: int, accepted: bool) -> bool:
        """One trial of a position whose estimated chance is `chance`.
        True: the text has turned; starts anew."""
        level = min(_LEVELS - 1, max(1, chance * _LEVELS >> 16))
        self._evidence = max(0, self._evidence + (_ACCEPTED if accepted else _REJECTED[level]))
        if self._evidence < _THRESHOLD:
            return False
        self._evidence = 0
        return True

    def observe_accepted(self, num_tokens: int) -> None:
        """As observe() of so many accepted tokens, whatever their chances: each only lowers the evidence, and
        none below zero."""
        if self._evidence:
            self._evidence = max(0, self._evidence + num_tokens * _ACCEPTED)


def log2_of(value: int) -> int:
    """log2(value / ONE) in 1/256 bits, rounded down: by squaring, since a library's logarithm may differ
    between machines in the last bit."""
    exponent = value.bit_length() - 17
    mantissa = value << 16 >> (exponent + 16) if exponent >= -16 else value << -exponent
    result = exponent
    for _ in range(8):
        mantissa = mantissa * mantissa >> 16
        result <<= 1
        if mantissa >= 2 * ONE:
            mantissa >>= 1
            result += 1
    return result


_ACCEPTED = -log2_of(3 * ONE)
_REJECTED = tuple(log2_of((3 * _LEVELS - level) * ONE // (3 * (_LEVELS - level))) for level in range(_LEVELS))

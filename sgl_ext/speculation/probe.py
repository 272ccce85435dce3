"""When a request that does not draft tries again:
after growing intervals, so that trying stays cheap for ever."""

from __future__ import annotations

FIRST_INTERVAL = 4
_MAX_INTERVAL = 1 << 15
_RICH_INTERVAL = 8


class ProbeSchedule:
    """Plain steps between trials. A failed trial doubles the interval (four times where regret is scarce, no
    longer than 8 where the request has gained enough to pay), an accepted one is followed by another at
    once, and a time of drafting that paid resets it: n failures in a row take over 4 * 2^n plain steps."""

    __slots__ = ("_elapsed", "interval")

    def __init__(self, interval: int = FIRST_INTERVAL) -> None:
        self.interval = interval
        self._elapsed = 0

    def dueness(self) -> int:
        """Elapsed over interval, times 256, at most twice due."""
        return min(512, (self._elapsed << 8) // self.interval)

    def plain_step(self) -> None:
        self._elapsed += 1

    def restart(self) -> None:
        """A step drafted: the wait begins anew."""
        self._elapsed = 0

    def failed(self, *, is_rich: bool, is_poor: bool) -> None:
        longest = _RICH_INTERVAL if is_rich else _MAX_INTERVAL
        self.interval = min(longest, self.interval * (4 if is_poor else 2))

    def succeeded(self) -> None:
        self.interval = max(FIRST_INTERVAL, self.interval >> 1)
        self._elapsed = self.interval

    def paid(self) -> None:
        self.interval = FIRST_INTERVAL

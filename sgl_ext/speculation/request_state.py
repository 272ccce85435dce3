"""What the controller holds for one running request."""

from __future__ import annotations

from sgl_ext.speculation.acceptance import AcceptanceEstimate
from sgl_ext.speculation.confidence import ConfidenceFactor, ConfidenceTable
from sgl_ext.speculation.conversation_memory import Lesson
from sgl_ext.speculation.fixed_point import ONE, PLAIN
from sgl_ext.speculation.probe import FIRST_INTERVAL, ProbeSchedule
from sgl_ext.speculation.regret import RegretAccount
from sgl_ext.speculation.request_option import SpecMode, SpecOption
from sgl_ext.speculation.turn_alarm import TurnAlarm

REQUEST_LIMIT = 4 * PLAIN
# At most this is lost from any moment on, also after a long good time. Large enough for a text that keeps
# changing to pay each change from what it gained before.
REQUEST_MOST = 64 * PLAIN
_START_WEIGHT = 2
_MEMORY_SHIFT = 7
_FORGET_WEIGHT = 2
# Below break-even, so that the request stops; close enough that one accepted token starts it again.
_CAUTION = ONE * 85 // 100
_PAID = 2 * PLAIN
# With regret left for fewer trials than these, the intervals grow faster, so that some are left to the end.
_POOR_PROBES = 6


class RequestState:
    """Mutable; all of it derives from the calls of the controller, none from the clock. floor and cap: the
    least and the most draft tokens that a step may verify."""

    __slots__ = (
        "_alarm", "_gain", "account", "cap", "drafts", "estimate", "factor", "floor", "is_auto", "option",
        "probe",
    )  # fmt: skip

    def __init__(self, option: SpecOption, chances: tuple[int, ...], lesson: Lesson | None) -> None:
        self.option = option
        self.is_auto = option.mode is SpecMode.AUTO
        self.floor = 0 if self.is_auto else option.width
        self.cap = len(chances) if self.is_auto else option.width
        self.estimate = AcceptanceEstimate(
            chances if lesson is None else lesson.chances, weight=_START_WEIGHT, memory_shift=_MEMORY_SHIFT
        )
        self.factor = ConfidenceFactor()
        self.account = RegretAccount(limit=REQUEST_LIMIT, most=REQUEST_MOST)
        interval = (
            FIRST_INTERVAL if lesson is None or lesson.probe_interval is None else lesson.probe_interval
        )
        self.probe = ProbeSchedule(interval)
        self.drafts = False
        self._alarm = TurnAlarm()
        self._gain = 0

    def chances(self, others: tuple[int, ...], own_is_better: bool) -> tuple[int, ...]:
        """Its own history where that has predicted better; else everybody's figures, which are steadier."""
        return self.estimate.chances() if own_is_better else others

    def start_drafting(self) -> None:
        if not self.drafts:
            self.drafts = True
            self._gain = 0
        self.probe.restart()

    def stop_drafting(self, break_even: int) -> None:
        """Its figures say that drafting does not pay: one accepted trial shall be enough to start again."""
        self.drafts = False
        self.forget()
        self.estimate.lower(0, break_even * _CAUTION >> 16)
        self.probe.restart()

    def lesson(self) -> Lesson:
        return Lesson(
            chances=self.estimate.chances(), probe_interval=None if self.drafts else self.probe.interval
        )

    def observe(
        self,
        width: int,
        accepted: int,
        *,
        levels: tuple[int, ...] | None,
        confidence: ConfidenceTable,
        trusted: bool,
        history: tuple[int, ...],
    ) -> None:
        """A step verified width draft tokens of this request and accepted the first `accepted`.

        levels: the draft's confidence by position, if it was shared; trusted: it chose the width; history:
        the chances that were used.
        """
        self._watch_turn(history, width, accepted)
        self.estimate.observe(width, accepted)
        if levels is not None:
            believed = confidence.chances(levels, self.factor.value())
            plain_believed = confidence.chances(levels, ONE)
            for position in range(min(accepted + 1, width)):
                outcome = position < accepted
                confidence.observe(position, levels[position], outcome, history[position], believed[position])
                self.factor.observe(outcome, plain_believed[position])
        if accepted == width and trusted and levels is not None:
            for position in range(width, len(history)):
                self.estimate.assume(position, believed[position])
        elif accepted == width:
            self.estimate.drift(width)

    def turns(self, width: int, accepted: int, chance: int) -> bool:
        """Whether this step's rejection says that the text has turned. chance: what was used of the token
        that was not accepted."""
        self._alarm.observe_accepted(accepted)
        return accepted < width and self._alarm.observe(chance, False)

    def forget(self) -> None:
        self.estimate.forget(_FORGET_WEIGHT)

    def count_gain(self, charge: int) -> None:
        self._gain -= charge
        if self._gain >= _PAID:
            self.probe.paid()
            self._gain = 0

    def probed(self, accepted: int, cost: int) -> None:
        """A trial of one token ended; cost: what it would have cost had it failed."""
        if accepted:
            self.probe.succeeded()
        else:
            left = self.account.left
            self.probe.failed(is_rich=left > REQUEST_LIMIT, is_poor=left < _POOR_PROBES * cost)

    def _watch_turn(self, chances: tuple[int, ...], width: int, accepted: int) -> None:
        for position in range(min(accepted + 1, width)):
            if self._alarm.observe(chances[position], position < accepted):
                self.forget()

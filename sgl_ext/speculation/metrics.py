"""Numbers of speculation for /metrics: counts from the controller's plans and results, as Prometheus
families. Pure.

The engine adds the times it measured; they go out to the metrics only and never into a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sgl_ext.speculation.break_even_alarm import BreakEvenAlarm
from sgl_ext.speculation.step_plan import StepKind, VerifyPlan

PREFIX = "sparkctl_spec_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """kind: counter or gauge. samples: (labels, value)."""

    name: str
    kind: str
    text: str
    samples: tuple[tuple[tuple[tuple[str, str], ...], float], ...]


class SpeculationMetrics:
    """Counters since the start; the alarm looks at the last steps only. A step is counted by few additions,
    since it is on the engine's way; what can be added up from those is, when it is asked for."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._num_tokens = 0
        self._num_request_steps = 0
        self._runs = [0] * (block + 1) ** 2  # requests' steps by width * (block + 1) + accepted
        self._kinds = dict.fromkeys(StepKind, 0)
        self._stopped = {kind: 0 for kind in StepKind if not kind.drafts}
        self._draft_s = 0.0
        self._verify_s = 0.0
        self._drafting: dict[str, bool] = {}
        self._last: tuple[tuple[str, ...], bool] | None = None  # requests, and whether they drafted
        self.alarm = BreakEvenAlarm()

    def admit(self, request_id: str) -> None:
        """A request starts; until finish() it counts as drafting or not."""
        self._drafting[request_id] = True
        self._last = None

    def observe(
        self, plan: VerifyPlan, accepted: Sequence[int], *, draft_s: float = 0.0, verify_s: float = 0.0
    ) -> None:
        """One finished step. draft_s, verify_s: how long both took, as measured."""
        draft = plan.draft
        kind, drafts = draft.kind, draft.drafts
        batch = len(plan.widths)
        self._kinds[kind] += 1
        self._num_request_steps += batch
        self._num_tokens += batch + sum(accepted)
        self._draft_s += draft_s
        self._verify_s += verify_s
        runs, size = self._runs, self._block + 1
        for width, count in zip(plan.widths, accepted, strict=True):
            runs[width * size + count] += 1
        if self._last != (draft.request_ids, drafts):
            self._note_drafting(draft.request_ids, kind)
        if drafts:
            self.alarm.observe(
                tokens_per_step=1 + sum(accepted) / batch, break_even=plan.cost_ns / draft.plain.cost_ns
            )

    def _note_drafting(self, request_ids: tuple[str, ...], kind: StepKind) -> None:
        self._last = request_ids, kind.drafts
        for request_id in request_ids:
            # Under overlap a request's last step is observed after its end.
            if request_id in self._drafting:
                if self._drafting[request_id] and not kind.drafts:
                    self._stopped[kind] += 1
                self._drafting[request_id] = kind.drafts

    def _by_position(self, accepted_only: bool) -> list[int]:
        """Draft tokens tested, or accepted, by position: a run of 2 of width 5 tested three, and accepted
        two."""
        size = self._block + 1
        found = [0] * self._block
        for idx, number in enumerate(self._runs):
            width, count = divmod(idx, size)
            for position in range(count if accepted_only else min(count + 1, width)):
                found[position] += number
        return found

    def _by_width(self) -> list[int]:
        size = self._block + 1
        return [sum(self._runs[width * size : (width + 1) * size]) for width in range(size)]

    def finish(self, request_id: str) -> None:
        self._drafting.pop(request_id, None)
        self._last = None

    def families(self) -> tuple[MetricFamily, ...]:
        stopped = sum(not drafts for drafts in self._drafting.values())
        return (
            _one("tokens", "counter", "Tokens of decode and verify steps.", self._num_tokens),
            _one("request_steps", "counter", "Steps times their requests.", self._num_request_steps),
            _many("steps", "Steps by why they draft or do not.", "kind", self._kinds.items()),
            _many(
                "tested",
                "Draft tokens reached by a verify.",
                "position",
                _by_index(self._by_position(False), 1),
            ),
            _many("accepted", "Draft tokens accepted.", "position", _by_index(self._by_position(True), 1)),
            _many(
                "width_request_steps",
                "Requests verified at a width.",
                "width",
                _by_index(self._by_width(), 0),
            ),
            _many("switched_off", "Requests that stopped drafting.", "reason", self._stopped.items()),
            _one("requests_off", "gauge", "Running requests that do not draft.", stopped),
            _one("draft_seconds", "counter", "Time in the draft.", self._draft_s),
            _one("verify_seconds", "counter", "Time in the target's steps.", self._verify_s),
            _one(
                "tokens_per_step_recent",
                "gauge",
                "Tokens a drafted step and request.",
                self.alarm.tokens_per_step,
            ),
            _one("break_even_recent", "gauge", "Tokens a step must bring.", self.alarm.break_even),
            _one(
                "below_break_even", "gauge", "1 while drafting costs more than it brings.", self.alarm.is_on
            ),
        )


def exposition(families: Iterable[MetricFamily], labels: Sequence[tuple[str, str]] = ()) -> str:
    """Prometheus text format; labels are added to every sample."""
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
        suffix = "_total" if family.kind == "counter" else ""
        for own, value in family.samples:
            inner = ",".join(f'{name}="{text}"' for name, text in (*labels, *own))
            lines.append(
                f"{family.name}{suffix}{{{inner}}} {value:g}" if inner else f"{family.name}{suffix} {value:g}"
            )
    return "\n".join(lines) + "\n"


def _one(name: str, kind: str, text: str, value: float) -> MetricFamily:
    return MetricFamily(name=PREFIX + name, kind=kind, text=text, samples=(((), float(value)),))


def _many(name: str, text: str, label: str, values: Iterable[tuple[str, int]]) -> MetricFamily:
    samples = tuple((((label, str(key)),), float(value)) for key, value in values)
    return MetricFamily(name=PREFIX + name, kind="counter", text=text, samples=samples)


def _by_index(values: Sequence[int], first: int) -> Iterable[tuple[str, int]]:
    return ((str(idx), value) for idx, value in enumerate(values, first))

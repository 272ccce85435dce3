"""Finds out, from all ranks' logs and exits, which rank failed first and why.

The ranks of a cluster fail together: one for a reason, the others because it went away. Exits mislead
too: a failed engine kills its own process tree (-9 without any OOM), and a worker whose scheduler was killed
exits 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from launcher.failure_rule import Weight
from launcher.rank_log import RankLog, Sighting, read_rank_log

# Log times are whole seconds, from clocks of several nodes: closer than this they do not tell who was first.
SAME_TIME_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RankLabel:
    node: str
    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo:
    """How a rank's main process ended.

    `code` is None while it lives, negative for a signal; a shell's or docker's 128 + signal counts the same.
    `seen_at_s` is one clock for all ranks. `clock_ahead_s` is the node's log clock minus the launcher's.
    `ended_by_launcher`: it was sparkctl that killed it, so its exit proves nothing.
    """

    code: int | None
    seen_at_s: float | None = None
    clock_ahead_s: float = 0.0
    ended_by_launcher: bool = False

    @property
    def signal(self) -> int | None:
        if self.code is None:
            return None
        if self.code < 0:
            return -self.code
        return self.code - 128 if 128 < self.code < 160 else None

    def __str__(self) -> str:
        if self.code is None:
            return "still running"
        return f"killed by signal {self.signal}" if self.signal else f"exit {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """`found` is False when no line and no exit explains the failure; see `last_lines` then.

    `is_secondary`: only consequences were seen (a lost peer, a warning). Right after a rank's end the rank
    that is the cause may not have written its line yet: reading again a second later can find it.
    `suspects`: when only the loss of a peer was seen, the ranks that say nothing at all; often one is frozen.
    """

    found: bool
    case: str
    rank: RankLabel | None
    line: str
    explanation: str
    hint: str
    exit: ExitInfo | None = None
    is_secondary: bool = False
    suspects: tuple[RankLabel, ...] = ()
    notes: tuple[str, ...] = ()
    last_lines: tuple[tuple[RankLabel, tuple[str, ...]], ...] = ()

    @property
    def headline(self) -> str:
        """One line: which rank, how it ended, and its root line."""
        if self.rank is None:
            return self.explanation
        status = f" ({self.exit})" if self.exit else ""
        return f"{self.rank}{status}: {self.line or self.explanation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    label: RankLabel
    sighting: Sighting
    time: datetime | None


def find_root_cause(
    logs: Mapping[RankLabel, Iterable[str]], exits: Mapping[RankLabel, ExitInfo]
) -> RootCause:
    """Pure. Reads each log once; a rank may be missing from either mapping."""
    ranks = {label: read_rank_log(lines) for label, lines in logs.items()}
    for label in exits:
        ranks.setdefault(label, RankLog())
    candidates = [
        _Candidate(label=label, sighting=sighting, time=_launcher_time(sighting, exits.get(label)))
        for label, rank in ranks.items()
        for sighting in rank.sightings
    ]
    notes = tuple(
        note for label in sorted(ranks) for note in _explain_exit(label, ranks[label], exits.get(label))
    )
    own = [c for c in candidates if c.sighting.weight <= Weight.DEATH and not c.sighting.is_after_network]
    if own:
        return _from_candidate(_first(own), exits, notes)
    silent = _find_silent_death(ranks, exits, notes)
    if silent:
        return silent
    for weights in ((Weight.CAUSE,), (Weight.NETWORK,), (Weight.UNKNOWN, Weight.DEATH), (Weight.WARNING,)):
        rest = [c for c in candidates if c.sighting.weight in weights]
        if rest:
            cause = _from_candidate(min(rest, key=_by_table), exits, notes)
            return _add_suspects(cause, ranks, exits) if weights == (Weight.NETWORK,) else cause
    return _nothing_found(ranks, exits, notes)


def _launcher_time(sighting: Sighting, exit_info: ExitInfo | None) -> datetime | None:
    if sighting.time is None or exit_info is None:
        return sighting.time
    return sighting.time - timedelta(seconds=exit_info.clock_ahead_s)


def _first(candidates: list[_Candidate]) -> _Candidate:
    """The earliest; among those of the same time, the one that proves most."""
    # No time at all means before the engine's first own log record, such as a refused argument.
    times = [c.time for c in candidates if c.time]
    untimed = [c for c in candidates if c.time is None]
    if untimed or not times:
        return min(untimed, key=_by_weight)
    limit = min(times) + timedelta(seconds=SAME_TIME_S)
    return min((c for c in candidates if c.time and c.time <= limit), key=_by_weight)


def _by_weight(candidate: _Candidate) -> tuple[int, datetime, int]:
    sighting = candidate.sighting
    return sighting.weight, candidate.time or datetime.min, sighting.line_idx


def _by_table(candidate: _Candidate) -> tuple[int, datetime, int]:
    return candidate.sighting.rule_idx, candidate.time or datetime.min, candidate.sighting.line_idx


def _from_candidate(
    candidate: _Candidate, exits: Mapping[RankLabel, ExitInfo], notes: tuple[str, ...]
) -> RootCause:
    sighting = candidate.sighting
    words = {**sighting.words, "node": candidate.label.node, "rank": str(candidate.label.rank)}
    return RootCause(
        found=True,
        case=sighting.case,
        rank=candidate.label,
        line=sighting.line,
        explanation=sighting.explanation.format_map(words),
        hint=sighting.hint.format_map(words),
        exit=exits.get(candidate.label),
        is_secondary=sighting.weight >= Weight.NETWORK or sighting.is_after_network,
        notes=notes,
    )


def _add_suspects(
    cause: RootCause, ranks: Mapping[RankLabel, RankLog], exits: Mapping[RankLabel, ExitInfo]
) -> RootCause:
    suspects = tuple(
        label for label in sorted(ranks) if label != cause.rank and ranks[label].says_nothing_of_its_end
    )
    if not suspects:
        return cause
    names = ", ".join(f"{label} ({exits[label]})" if label in exits else str(label) for label in suspects)
    explanation = f"{cause.explanation} No word of it from {names}: look there first."
    return replace(cause, suspects=suspects, explanation=explanation)


def _find_silent_death(
    ranks: Mapping[RankLabel, RankLog], exits: Mapping[RankLabel, ExitInfo], notes: tuple[str, ...]
) -> RootCause | None:
    """A rank that ended without a word about it: killed from outside, or ended by something unknown."""
    silent = [
        (info.seen_at_s if info.seen_at_s is not None else float("inf"), label)
        for label, info in exits.items()
        if info.code and not info.ended_by_launcher and ranks[label].says_nothing_of_its_end
    ]
    if not silent:
        return None
    label = min(silent)[1]
    info = exits[label]
    if info.signal == 9:
        explanation = (
            f"The engine on {label.node} was killed with signal 9 from outside, without a word in its log: by"
            " the kernel's OOM killer or by hand (kill -9, docker kill)."
        )
        hint = f"`sudo dmesg -T | grep -iE 'oom|killed process'` on {label.node} tells which."
    else:
        explanation = f"The engine on {label.node} ended ({info}) without a message."
        hint = f"`sparkctl logs` for its last lines, `sudo dmesg -T | tail` on {label.node}."
    return RootCause(
        found=True,
        case="killed-from-outside" if info.signal else "ended-without-message",
        rank=label,
        line="",
        explanation=explanation,
        hint=hint,
        exit=info,
        notes=notes,
        last_lines=((label, ranks[label].last_lines),),
    )


def _nothing_found(
    ranks: Mapping[RankLabel, RankLog], exits: Mapping[RankLabel, ExitInfo], notes: tuple[str, ...]
) -> RootCause:
    ended = [label for label in sorted(ranks) if label in exits and exits[label].code is not None]
    where = "; ".join(f"{label}: {exits[label]}" for label in ended) or "no rank has ended"
    return RootCause(
        found=False,
        case="unknown",
        rank=ended[0] if len(ended) == 1 else None,
        line="",
        explanation=f"No known failure message in any rank's log ({where}).",
        hint="The last lines of each rank are below; `sparkctl logs` shows all.",
        exit=exits[ended[0]] if len(ended) == 1 else None,
        notes=notes,
        last_lines=tuple((label, ranks[label].last_lines) for label in sorted(ranks)),
    )


def _explain_exit(label: RankLabel, rank: RankLog, info: ExitInfo | None) -> Iterable[str]:
    if info is None or info.ended_by_launcher:
        return
    if info.code == 0 and rank.killed_child:
        yield f"{label}: exit 0 hides a failure; its scheduler process was killed ({rank.killed_child})."
    if info.signal == 9 and rank.killed_itself:
        yield f"{label}: signal 9 is the engine ending its own process tree, no proof of an OOM kill."
    if info.code is None and any(s.case == "http-port-busy" for s in rank.sightings):
        yield f"{label}: the process is still alive and holds its memory, but has no API."

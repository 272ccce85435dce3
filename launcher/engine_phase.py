"""Follows one rank through the engine's start by reading its log, line by line.

The phases come in a fixed order and never go back. Ranks > 0 log no progress bars and no HTTP server; such a
worker is ready when its dummy health check server is up, which the engine starts once its scheduler is ready.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum

from launcher.engine_log import parse_line


class Phase(IntEnum):
    STARTING = 0
    RENDEZVOUS = 1
    LOADING = 2
    POST_PROCESSING = 3
    DRAFT = 4
    KV_POOL = 5
    AUTOTUNE = 6
    GRAPHS = 7
    SERVER = 8
    WARMUP = 9
    READY = 10

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    Phase.STARTING: "importing the engine",
    Phase.RENDEZVOUS: "meeting the other ranks",
    Phase.LOADING: "loading weights",
    Phase.POST_PROCESSING: "preparing weights",
    Phase.DRAFT: "loading the draft model",
    Phase.KV_POOL: "allocating the KV pool",
    Phase.AUTOTUNE: "tuning kernels",
    Phase.GRAPHS: "capturing graphs",
    Phase.SERVER: "starting the HTTP server",
    Phase.WARMUP: "warming up",
    Phase.READY: "ready",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the log told so far. Sizes are the engine's own GB (2**30 bytes); None = not seen."""

    max_total_num_tokens: int | None = None
    context_len: int | None = None
    max_running_requests: int | None = None
    available_mem_gb: float | None = None
    weight_gb: float | None = None
    draft_weight_gb: float | None = None
    load_weight_s: float | None = None
    rendezvous_s: float | None = None
    quantization: str | None = None
    nccl_version: str | None = None
    startup_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent:
    """Something changed: the phase, its percentage, or a fact. `percent` is None where no bar is known."""

    phase: Phase
    is_new_phase: bool
    percent: int | None = None
    num_done: int | None = None
    num_total: int | None = None
    facts: EngineFacts = field(default_factory=EngineFacts)

    @property
    def text(self) -> str:
        """One short line for a progress display, such as "loading weights 42 % (20/48)"."""
        parts = [self.phase.label]
        if self.percent is not None:
            parts.append(f"{self.percent} %")
        if self.num_total:
            parts.append(f"({self.num_done}/{self.num_total})")
        if self.phase is Phase.KV_POOL and self.facts.max_total_num_tokens:
            parts.append(f"({self.facts.max_total_num_tokens} tokens)")
        return " ".join(parts)


# Marker -> phase. The first match counts; lines that can hold user text (batch lines, requests) match none.
_MARKERS: tuple[tuple[re.Pattern[str], Phase], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"^Init (?:parallel|torch distributed) begin\.", Phase.RENDEZVOUS),
        (r"^Load weight begin\.", Phase.LOADING),
        (r"^Draft checkpoint bundles a DSpark head", Phase.DRAFT),
        (r"^(?:Finished streaming dequant|Preparing DSv4 MXFP4 experts)", Phase.POST_PROCESSING),
        (r"^Load weight end\.", Phase.POST_PROCESSING),
        (r"^DS[Vv]4 (?:SWA sizing|memory calculation|pool sizes)\b", Phase.KV_POOL),
        (r"^(?:KV Cache is allocated|Memory pool end\.|Initialize \S*TokenToKVPool)", Phase.KV_POOL),
        (r"^Running FlashInfer autotune|^\[AutoTuner\]: Tuning", Phase.AUTOTUNE),
        (r"^Capture .*\b[Gg]raph begin", Phase.GRAPHS),
        (r"^max_total_num_tokens=\d+, ", Phase.SERVER),
        (r"^Engine startup timings \(s\):", Phase.SERVER),
        (r"^(?:INFO: +)?Started server process \[", Phase.SERVER),
        (r"^(?:INFO: +)?Uvicorn running on ", Phase.WARMUP),
    )
)
_HEAD_READY = re.compile(r"^The server is fired up and ready to roll!")
_WORKER_READY = re.compile(r"^Dummy health check server started in background thread at ")

_SHARD_BAR = re.compile(r"(?:checkpoint |loading )shards: +(\d+)% Completed \| (\d+)/(\d+) ")
_GRAPH_BAR = re.compile(r"^Capturing (?:batches|num tokens)\b.*?: +(\d+)%\|.*?\| *(\d+)/(\d+) ")

_POOL = re.compile(r"^max_total_num_tokens=(\d+), .*max_running_requests=(\d+), context_len=(\d+)")
_AVAILABLE = re.compile(r"avail(?:able_[gc]pu_)? ?mem=([\d.]+)(?: GB)?")
_LOAD_END = re.compile(
    r"^Load weight end\. elapsed=([\d.]+) s(?:, type=[^,]*)?(?:, quant=([^,]+))?.*mem usage=(-?[\d.]+)"
)
_RENDEZVOUS_END = re.compile(r"^Init (?:parallel|torch distributed) ends\. elapsed=([\d.]+) s")
_NCCL = re.compile(r"sglang is using nccl==([\d.]+)|NCCL version ([\d.]+\+cuda[\d.]+)")
_TIMINGS = re.compile(r"^Engine startup timings \(s\): ")
_TIMING = re.compile(r"(\w+)=([\d.]+)")


class PhaseTracker:
    """Feed it every line of one rank's log, in order. `feed` returns an event only when something changed."""

    def __init__(self, rank_is_head: bool) -> None:
        self._rank_is_head = rank_is_head
        self._num_load_begins: dict[tuple[str, ...], int] = {}
        self.phase = Phase.STARTING
        self.facts = EngineFacts()
        self._bar: tuple[int, int, int] | None = None

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY

    def feed(self, line: str) -> PhaseEvent | None:
        parsed = parse_line(line)
        before = (self.phase, self.facts, self._bar)
        if parsed.before:
            self._read(parsed.before, ())
        self._read(parsed.text, parsed.rank_words)
        if (self.phase, self.facts, self._bar) == before:
            return None
        percent, num_done, num_total = self._bar or (None, None, None)
        return PhaseEvent(
            phase=self.phase,
            is_new_phase=self.phase is not before[0],
            percent=percent,
            num_done=num_done,
            num_total=num_total,
            facts=self.facts,
        )

    def _read(self, text: str, rank_words: tuple[str, ...]) -> None:
        self._read_phase(text, rank_words)
        self._read_bar(text)
        self.facts = read_facts(text, self.facts, is_draft=self._num_load_begins.get(rank_words, 0) > 1)

    def _read_phase(self, text: str, rank_words: tuple[str, ...]) -> None:
        if (_HEAD_READY if self._rank_is_head else _WORKER_READY).match(text):
            self._advance(Phase.READY)
            return
        for pattern, phase in _MARKERS:
            if pattern.search(text):
                if text.startswith("Load weight begin."):
                    # The draft model is loaded by a second cycle of the same lines. Counted per rank: several
                    # GPUs of one node write into one log.
                    num_begins = self._num_load_begins.get(rank_words, 0) + 1
                    self._num_load_begins[rank_words] = num_begins
                    phase = Phase.DRAFT if num_begins > 1 else phase
                self._advance(phase)
                return

    def _advance(self, phase: Phase) -> None:
        if phase > self.phase:
            self.phase = phase
            self._bar = None

    def _read_bar(self, text: str) -> None:
        shards = _SHARD_BAR.search(text)
        if shards and self.phase in (Phase.LOADING, Phase.DRAFT):
            self._bar = (int(shards[1]), int(shards[2]), int(shards[3]))
            if self.phase is Phase.LOADING and shards[2] == shards[3]:
                # From here to "Load weight end" the engine can be silent for minutes (541 s on GB10, TP3).
                self._advance(Phase.POST_PROCESSING)
        graphs = _GRAPH_BAR.search(text)
        if graphs and self.phase <= Phase.GRAPHS:
            self._advance(Phase.GRAPHS)
            self._bar = (int(graphs[1]), int(graphs[2]), int(graphs[3]))


def read_facts(text: str, known: EngineFacts, *, is_draft: bool = False) -> EngineFacts:
    """Returns `known` with what `text` (a line without its prefix) adds. `is_draft`: second load cycle."""
    found: dict[str, object] = {}
    if pool := _POOL.match(text):
        found.update(
            max_total_num_tokens=int(pool[1]), max_running_requests=int(pool[2]), context_len=int(pool[3])
        )
    if end := _LOAD_END.match(text):
        if is_draft:
            found.update(draft_weight_gb=float(end[3]))
        else:
            found.update(load_weight_s=float(end[1]), weight_gb=float(end[3]))
            found.update(quantization=end[2]) if end[2] and end[2] != "None" else None
    if end := _RENDEZVOUS_END.match(text):
        found.update(rendezvous_s=float(end[1])) if known.rendezvous_s is None else None
    if available := _AVAILABLE.search(text):
        found.update(available_mem_gb=float(available[1]))
    if nccl := _NCCL.search(text):
        found.update(nccl_version=nccl[2] or nccl[1])
    if _TIMINGS.match(text):
        found.update(startup_s=_read_timings(text))
    return replace(known, **found) if found else known  # type: ignore[arg-type]


def _read_timings(text: str) -> tuple[tuple[str, float], ...]:
    """Names the seconds inside cuda_graph={decode=2.00} "cuda_graph.decode"."""
    timings = []
    for match in _TIMING.finditer(text):
        before = text[: match.start()]
        group = "" if before.count("{") == before.count("}") else "cuda_graph."
        timings.append((group + match[1], float(match[2])))
    return tuple(timings)


def known_facts(facts: EngineFacts) -> dict[str, object]:
    """The facts that were seen, by name, for --json output."""
    return {f.name: value for f in fields(facts) if (value := getattr(facts, f.name)) not in (None, ())}

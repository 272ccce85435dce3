"""summary.json: figures of a run, each computed from the raw records by summarize.py."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import Field

from launcher.frozen_model import FrozenModel
from launcher.results.records import Count, Label


class Spread(FrozenModel):
    """One value a round: their median, smallest and largest."""

    median: float
    min: float
    max: float
    rounds: Annotated[int, Field(ge=1)]


class Percentiles(FrozenModel):
    """Over all counted requests (or gaps) of all rounds, linear between neighbours."""

    p50: float
    p90: float
    p99: float
    count: Annotated[int, Field(ge=1)]


class CellSummary(FrozenModel):
    """One case at one concurrency. A figure that the records do not carry is None, never 0.

    request_tokens_per_s    median over a round's requests of (completion_tokens - 1) / (last chunk - first)
    aggregate_tokens_per_s  sum of (completion_tokens - 1) / (latest last chunk - earliest first token)
    prefill_tokens_per_s    median over a round's requests of (prompt - cached tokens) / TTFT
    itl_s                   per request: (last chunk - first) / (completion_tokens - 1)
    chunk_gap_s             between neighbouring chunks, each with any number of tokens
    steps_per_s             decode passes of the engine / (latest last chunk - earliest first token)
    tokens_per_step         decode tokens of the engine / its decode passes, all streams together
    accepted_per_step       tokens of a stream / its verify calls, with speculative decoding
    engram_hit_rate         rows from memory / rows asked for
    engram_cold_hit_rate    the same of the discarded round, whose rows nobody asked for before
    """

    protocol: Label
    suite: Label
    case: Label
    concurrency: Annotated[int, Field(ge=1)]
    rounds: Count
    requests: Count
    failed: Count
    discarded: Count
    checked: Count
    passed: Count
    prompt_tokens: Spread | None
    cached_tokens: Spread | None
    completion_tokens: Spread | None
    request_tokens_per_s: Spread | None
    aggregate_tokens_per_s: Spread | None
    prefill_tokens_per_s: Spread | None
    ttft_s: Percentiles | None
    ttft_round_s: Spread | None
    itl_s: Percentiles | None
    chunk_gap_s: Percentiles | None
    steps_per_s: Spread | None
    tokens_per_step: Spread | None
    accepted_per_step: Spread | None
    engram_hit_rate: Spread | None
    engram_cold_hit_rate: Spread | None

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.protocol, self.suite, self.case, self.concurrency)


class NodeSummary(FrozenModel):
    """Extremes of one node's samples over the run."""

    node: str
    samples: Count
    gpu_clock_mhz_min: float | None
    gpu_clock_mhz_max: float | None
    gpu_temperature_c_max: float | None
    gpu_power_w_max: float | None
    memory_available_bytes_min: Count | None


class Summary(FrozenModel):
    schema_version: Literal[1] = 1
    cells: Annotated[tuple[CellSummary, ...], Field(strict=False)]
    nodes: Annotated[tuple[NodeSummary, ...], Field(strict=False)]

    def cell(self, key: tuple[str, str, str, int]) -> CellSummary | None:
        return next((cell for cell in self.cells if cell.key == key), None)

    def cells_to_read(self) -> list[CellSummary]:
        """In the order of a reader: 256 tokens before 1024. On disk they are in that of their names."""

        def place(cell: CellSummary) -> tuple[str, list[str | int], int]:
            words = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", cell.case)]
            return (cell.suite, words, cell.concurrency)

        return sorted(self.cells, key=place)


def summary_text(summary: Summary) -> str:
    """The only text that this summary has on disk."""
    return json.dumps(summary.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False) + "\n"

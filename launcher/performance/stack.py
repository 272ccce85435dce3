"""What a build does that its speed depends on. Each field is a fact of the build, not a tuning value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """`heads`: attention heads after padding, of all ranks. `collective`: a table of latencies.json.

    `dense`: `fused` reads dense weights at memory speed (b12x); `stock` is slower by a fitted factor.
    `verify`: rows that are worked on, `full` (all of block + 1), `cap` (rejected rows reuse their anchor's
    experts, but are still rows of every other kernel) or `planner` (fewer rows). `engram_hidden`: reads of a
    decode step lie behind other work. `engram_read_share`: share of a prompt's rows that it waits for.
    `index_tokens`: positions that the indexer of a decode step goes through; 0 leaves it out.
    """

    tp: int
    ep: int = 1
    heads: int = 64
    expert_width: int | None = None
    collective: str
    dense: Literal["stock", "fused"] = "stock"
    wo_a_bf16: bool = True
    fp8_draft_head: bool = False
    block: int = 5
    verify: Literal["full", "cap", "planner"] = "full"
    engram_hidden: bool = True
    engram_fp8_gather: bool = False
    one_prompt: bool = False
    chunk_tokens: int = 1024
    prefill_split_rows: bool = False
    sequence_parallel: bool = False
    engram_read_share: float = 0.0
    index_tokens: int = 0

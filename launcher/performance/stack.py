"""What a build does that its speed depends on. Each field is a fact of the build, not a tuning value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MXFP4_BITS = 4.25
Texts = Literal["different", "one_prompt", "alike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """`heads`: attention heads after padding, of all ranks. `collective`: a table of latencies.json.

    `expert_bits`: bits of one expert weight with its scales. `dense`: `fused` reads dense weights at memory
    speed (b12x); `stock` is slower by a fitted factor. `fused_mhc`: statistics of mHC in one kernel.
    `verify`: rows that are worked on, `full` (all of block + 1), `cap` (rejected rows reuse their anchor's
    experts, but are still rows of every other kernel) or `planner` (fewer rows). `engram_hidden`: reads of a
    decode step lie behind other work. `engram_read_share`: share of a prompt's rows that it waits for.
    `texts`: what the streams run: different ones, one prompt, or replies so alike that they draw the same
    experts. `live_tokens`: context of each decode stream.
    `index_capacity_tokens`: positions that a decode step's top-k goes through whatever is live; 0: live ones.
    """

    tp: int
    ep: int = 1
    heads: int = 64
    expert_width: int | None = None
    expert_bits: float = MXFP4_BITS
    collective: str
    dense: Literal["stock", "fused"] = "stock"
    wo_a_bf16: bool = True
    fp8_draft_head: bool = False
    fused_mhc: bool = False
    block: int = 5
    verify: Literal["full", "cap", "planner"] = "full"
    engram_hidden: bool = True
    engram_fp8_gather: bool = False
    texts: Texts = "different"
    chunk_tokens: int = 1024
    prefill_split_rows: bool = False
    sequence_parallel: bool = False
    engram_read_share: float = 0.0
    kv_layout: Literal["v4", "v41"] = "v4"
    live_tokens: int = 0
    index_capacity_tokens: int = 0

"""Settings of published servers, for the tests of `fit`."""

from __future__ import annotations

from launcher.fit.constants import GIB, constants
from launcher.fit.kv_pool import PoolSettings
from launcher.fit.memory_budget import MemorySettings, gib
from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.fit.rank_weights import plan_split

SHAPE: ModelShape = shipped_shape("v41-flash")


def server(
    *,
    tp: int,
    ep: int = 1,
    requests: int = 4,
    chunk: int = 1024,
    verify: int = 6,
    context: int = 262144,
    tokens: int | None = 750_000,
    mem_fraction: float | None = None,
    cache_gib: float = 0,
    heads: int | None = None,
    draft_experts: int | None = None,
    expert_width: int | None = None,
    query_row_ranks: int = 1,
    nccl_buffers_small: bool = True,
) -> MemorySettings:
    return MemorySettings(
        split=plan_split(
            SHAPE.config, tp=tp, ep=ep, heads=heads, draft_experts=draft_experts, expert_width=expert_width
        ),
        pool=PoolSettings(max_running_requests=requests, chunk_tokens=chunk, verify_tokens=verify),
        context_tokens=context,
        pinned_tokens=tokens,
        mem_fraction=mem_fraction,
        nccl_buffers_small=nccl_buffers_small,
        engram_resident=False,
        engram_cache_bytes=round(cache_gib * GIB),
        engram_lookahead_bytes=0,
        usable_bytes=gib(constants().usable_gib),
        query_row_ranks=query_row_ranks,
    )


# The three-Spark boot log of 2026-09-11: EP3, 96 heads, 129 draft experts, block 5, chunk 1024, 3M tokens.
LOG_TP3 = server(tp=3, ep=3, heads=96, draft_experts=129, tokens=3_000_000, context=1048576)
# The four-Spark log of 2026-09-19: 48 requests, chunk 4096, block 5, 6M tokens; EP2 and 4 GiB of row cache
# are those of the profile that it tunes.
LOG_TP4 = server(
    tp=4, ep=2, requests=48, chunk=4096, tokens=6_000_000, context=1048576, cache_gib=4, mem_fraction=None
)

"""Pure: what a budget forbids. Each rule has a name, the arithmetic, and the next thing to type."""

from __future__ import annotations

import math
from collections.abc import Iterator

from launcher.fit.constants import GB, GIB, constants
from launcher.fit.fit_problem import FitProblem
from launcher.fit.kv_pool import PAGE_TOKENS, bytes_per_token, page_down
from launcher.fit.memory_budget import (
    MemorySettings,
    RankBudget,
    budget_rank,
    engine_pool_tokens,
    gb,
    served_tokens,
    weight_bytes,
    with_chunk,
)
from launcher.fit.model_shape import ModelShape
from launcher.fit.rank_weights import rank_part_bytes
from launcher.fit.weight_classes import Part

MAX_CHUNK_TOKENS = 16384
# The limit of chunk x prefix was found on three Sparks; four have about 25 GiB more of room.
_PRODUCT_LIMIT_TP = 3


def budget_problems(shape: ModelShape, settings: MemorySettings) -> tuple[FitProblem, ...]:
    """Weights first: when they do not fit, the rest is no news."""
    too_large = tuple(_weight_problems(shape, settings))
    if too_large:
        return too_large
    return (
        *_context_problems(shape, settings),
        *_fraction_problems(shape, settings),
        *_pool_size_problems(shape, settings),
        *_product_problems(settings),
        *_headroom_problems(shape, settings),
        *_nccl_problems(settings),
    )


def min_mem_fraction(shape: ModelShape, settings: MemorySettings) -> float:
    """Least mem-fraction-static that leaves the engine room for a pool, also when little was free before."""
    held = weight_bytes(shape, settings.split, draft=None if settings.pool.verify_tokens else False)
    held += settings.engram_cache_bytes + settings.engram_lookahead_bytes
    return held / (constants().weights_per_static_fraction_gib.value * GIB)


def product_limit(settings: MemorySettings) -> int | None:
    """Largest chunk x prefix that ran on clusters of this size; None where memory alone decides."""
    if settings.split.tp > _PRODUCT_LIMIT_TP:
        return None
    return int(constants().chunk_prefix_ran.value) * settings.query_row_ranks


def largest_safe_chunk(shape: ModelShape, settings: MemorySettings) -> int | None:
    """Largest chunk for the settings' context, in whole pages; None when even one page is too much."""
    tokens = served_tokens(shape, settings)
    limit = product_limit(settings)
    for chunk in range(MAX_CHUNK_TOKENS, 0, -PAGE_TOKENS):
        if limit is not None and chunk * settings.context_tokens > limit:
            continue
        if budget_rank(shape, with_chunk(settings, chunk), 0, tokens=tokens).left_bytes >= gb(
            constants().floor_gb
        ):
            return chunk
    return None


def largest_safe_pool(shape: ModelShape, settings: MemorySettings) -> int:
    """KV tokens that leave the floor in the longest prefill, on the head; 0 when none do."""
    empty = budget_rank(shape, settings, 0, tokens=0)
    pool = settings.pool
    per_token = bytes_per_token(shape.config, has_draft=pool.verify_tokens > 0, kv_layout=pool.kv_layout)
    return max(0, page_down(int((empty.left_bytes - gb(constants().floor_gb)) / per_token)))


def head_budget(shape: ModelShape, settings: MemorySettings) -> RankBudget:
    return budget_rank(shape, settings, 0)


def _is_refused(settings: MemorySettings, head: RankBudget) -> bool:
    """Where chunk x prefix is bounded by what ran, the margin lies there, and the transient must only fit."""
    floor = gb(constants().floor_gb)
    least_left = floor if product_limit(settings) is None else 0
    return head.left_bytes < least_left or head.idle_bytes < floor


def _weight_problems(shape: ModelShape, settings: MemorySettings) -> Iterator[FitProblem]:
    parts = rank_part_bytes(shape, settings.split)
    total = sum(parts.values())
    if total > settings.usable_bytes:
        largest = sorted(parts.items(), key=lambda entry: -entry[1])[:4]
        listed = " + ".join(f"{part.value} {size / GIB:.1f}" for part, size in largest)
        without_rows = shape.stored_bytes - shape.part_bytes[Part.ENGRAM_ROWS]
        yield FitProblem.refuse(
            "weights",
            f"the weights of one rank must fit {settings.usable_bytes / GIB:.1f} GiB, got "
            f"{total / GIB:.1f} GiB at "
            f"tp {settings.split.tp}: {listed} + rest "
            f"{(total - sum(size for _, size in largest)) / GIB:.1f} GiB "
            f"({without_rows / GIB:.1f} GiB stored without Engram rows)",
            "use three or four Sparks: sparkctl fit --recipe v41-flash-3x",
        )
    elif settings.engram_resident and head_budget(shape, settings).idle_bytes < 0:
        rows = shape.part_bytes[Part.ENGRAM_ROWS] / settings.split.tp
        yield FitProblem.refuse(
            "engram-rows",
            f"weights and resident Engram rows must fit {settings.usable_bytes / GIB:.1f} GiB, got "
            f"{total / GIB:.1f} + {rows / GIB:.1f} GiB and what serving needs",
            "read the rows from NVMe: extensions.engram.residence: nvme",
        )


def _context_problems(shape: ModelShape, settings: MemorySettings) -> Iterator[FitProblem]:
    most = shape.config.max_position_embeddings
    if settings.context_tokens > most:
        yield FitProblem.refuse(
            "context",
            f"server.context_length must be at most the model's {most}, got {settings.context_tokens}",
            f"set server.context_length: {most}",
        )


def _fraction_problems(shape: ModelShape, settings: MemorySettings) -> Iterator[FitProblem]:
    if settings.mem_fraction is None:
        return
    least = math.ceil(min_mem_fraction(shape, settings) * 1000) / 1000
    if settings.mem_fraction < least:
        yield FitProblem.refuse(
            "mem-fraction",
            f"server.mem_fraction_static must be at least {least:.3f} for these weights, got "
            f"{settings.mem_fraction:g}: they leave no memory for the KV pool",
            f"set server.mem_fraction_static: {math.ceil(least * 100) / 100:.2f}",
        )


def _pool_size_problems(shape: ModelShape, settings: MemorySettings) -> Iterator[FitProblem]:
    served, computed = served_tokens(shape, settings), engine_pool_tokens(shape, settings)
    if served < settings.context_tokens:
        yield FitProblem.warn(
            "pool-below-context",
            f"the KV pool must hold one request of the full context {settings.context_tokens}, got "
            f"{served} tokens",
            "raise server.max_total_tokens, or lower server.context_length",
        )
    if settings.pinned_tokens is None:
        yield FitProblem.warn(
            "pool-not-pinned",
            "server.max_total_tokens must be set, got none: the engine then sizes the pool by what is free "
            "at that moment, another one each boot",
            f"set server.max_total_tokens: {largest_safe_pool(shape, settings)} or less",
        )
    elif computed is not None and computed < page_down(settings.pinned_tokens):
        yield FitProblem.warn(
            "pool-clamped",
            f"server.max_total_tokens must be at most {computed} with mem_fraction_static "
            f"{settings.mem_fraction:g}, "
            f"got {settings.pinned_tokens}: the engine clamps it",
            f"set server.max_total_tokens: {computed}, or raise server.mem_fraction_static",
        )


def _product_problems(settings: MemorySettings) -> Iterator[FitProblem]:
    limit = product_limit(settings)
    chunk = min(settings.pool.chunk_tokens, settings.context_tokens)
    product = chunk * settings.context_tokens
    if limit is None:
        return
    safe = int(constants().chunk_prefix_safe.value) * settings.query_row_ranks
    message = (
        f"chunked_prefill_size x context_length must be at most {{bound}} on {settings.split.tp} Sparks, "
        f"got {chunk} x {settings.context_tokens} = {product:.3g}: {{why}}"
    )
    if product > limit:
        why = "a product of 2.62e8 ended a host in the prefill of a long prompt"
        text = message.format(bound=f"{limit:.3g}", why=why)
        yield FitProblem.refuse("chunk-times-context", text, _product_hint(settings, limit))
    elif product > safe:
        why = "no more than 2.13e8 has run"
        text = message.format(bound=f"{safe:.3g}", why=why)
        yield FitProblem.warn("chunk-times-context", text, _product_hint(settings, safe))


def _product_hint(settings: MemorySettings, limit: int) -> str:
    chunk = page_down(limit // settings.context_tokens)
    context = page_down(limit // min(settings.pool.chunk_tokens, settings.context_tokens))
    shorter = f"set server.context_length: {context}"
    return f"set server.chunked_prefill_size: {chunk}, or {shorter}" if chunk else shorter


def _headroom_problems(shape: ModelShape, settings: MemorySettings) -> Iterator[FitProblem]:
    head = head_budget(shape, settings)
    floor = gb(constants().floor_gb)
    if head.left_bytes >= floor:
        return
    served = served_tokens(shape, settings)
    pool, chunk = largest_safe_pool(shape, settings), largest_safe_chunk(shape, settings)
    options = [f"server.max_total_tokens: {pool}"] if pool >= settings.context_tokens else []
    options += [f"server.chunked_prefill_size: {chunk}"] if chunk else []
    report = FitProblem.refuse if _is_refused(settings, head) else FitProblem.warn
    yield report(
        "headroom",
        f"at least {floor / GB:.1f} GB must stay free on the head in the longest prefill, got "
        f"{head.left_bytes / GB:.1f} GB: {head.usable_bytes / GB:.1f} usable - {head.start_bytes / GB:.1f} "
        f"at start (pool of {served} tokens) - {head.serving_growth.num_bytes / GB:.1f} while serving - "
        f"{head.prefill_transient.num_bytes / GB:.1f} for chunk {settings.pool.chunk_tokens} at "
        f"{settings.context_tokens} tokens",
        "set " + " or ".join(options) if options else "lower server.context_length, or use more Sparks",
    )


def _nccl_problems(settings: MemorySettings) -> Iterator[FitProblem]:
    if not settings.nccl_buffers_small and settings.split.tp > 1:
        saved = constants().nccl_default_gb.value - constants().nccl_small_gb.value
        yield FitProblem.warn(
            "nccl-buffers",
            f"NCCL's buffers must be small on unified memory, got its own sizes: {saved:.1f} GB more on "
            "every node",
            "set NCCL_BUFFSIZE 1048576, NCCL_LL128_BUFFSIZE 262144, NCCL_PROTO ^LL128, NCCL_MAX_NCHANNELS "
            "8 in the recipe's environment",
        )

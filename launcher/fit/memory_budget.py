"""Pure: one rank's memory on a Spark, item by item, each with its formula or source."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from launcher.fit.constants import GB, GIB, Constant, constants
from launcher.fit.kv_pool import (
    PoolSettings,
    bytes_per_token,
    page_down,
    pair_state_bytes,
    pool_tokens,
    swa_bytes,
    swa_tokens,
)
from launcher.fit.model_shape import ModelShape
from launcher.fit.rank_weights import Split, engram_rank_bytes, rank_part_bytes
from launcher.fit.weight_classes import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """What a recipe says about memory. `pinned_tokens` and `mem_fraction` are None where the engine chooses.

    `query_row_ranks`: ranks that share the indexer's query rows; 1 in SGLang 0.5.23.
    """

    split: Split
    pool: PoolSettings
    context_tokens: int
    pinned_tokens: int | None
    mem_fraction: float | None
    nccl_buffers_small: bool
    engram_resident: bool
    engram_cache_bytes: int
    engram_lookahead_bytes: int
    usable_bytes: int
    query_row_ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`how`: the formula; `source`: where a constant in it was measured, empty for plain arithmetic."""

    name: str
    num_bytes: int
    how: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBudget:
    """`start_items` are held when the engine is ready; serving adds to them, then the longest prefill."""

    rank: int
    usable_bytes: int
    start_items: tuple[Item, ...]
    serving_growth: Item
    prefill_transient: Item

    @property
    def start_bytes(self) -> int:
        return sum(item.num_bytes for item in self.start_items)

    @property
    def idle_bytes(self) -> int:
        """Free while serving, between long prompts. Negative: it does not fit."""
        return self.usable_bytes - self.start_bytes - self.serving_growth.num_bytes

    @property
    def left_bytes(self) -> int:
        """Free in the last chunk of the longest prompt."""
        return self.idle_bytes - self.prefill_transient.num_bytes

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.start_items, self.serving_growth, self.prefill_transient)


def gib(constant: Constant) -> int:
    return round(constant.value * GIB)


def gb(constant: Constant) -> int:
    return round(constant.value * GB)


def weight_bytes(shape: ModelShape, split: Split, *, draft: bool | None = None) -> int:
    """Weights of one rank; `draft` picks the target's or the draft's."""
    parts = rank_part_bytes(shape, split)
    return sum(size for part, size in parts.items() if draft is None or part.is_draft == draft)


def engine_pool_tokens(shape: ModelShape, settings: MemorySettings) -> int | None:
    """Pool that mem-fraction-static gives on the head, the poorest rank; None without a fraction."""
    if settings.mem_fraction is None:
        return None
    known = constants()
    before = settings.usable_bytes - gib(known.before_load_gib) - gib(known.head_only_gib)
    held = weight_bytes(shape, settings.split, draft=None if settings.pool.verify_tokens else False)
    held += settings.engram_cache_bytes + settings.engram_lookahead_bytes
    if settings.engram_resident:
        held += engram_rank_bytes(shape, settings.split)
    return pool_tokens(shape.config, settings.pool, before * settings.mem_fraction - held)


def served_tokens(shape: ModelShape, settings: MemorySettings) -> int:
    """Tokens of the pool that will be served: the pinned size as the engine clamps it, in whole pages.

    Without a pin and a fraction, one full context: less cannot serve the recipe.
    """
    computed = engine_pool_tokens(shape, settings)
    if settings.pinned_tokens is None:
        return page_down(settings.context_tokens) if computed is None else computed
    pinned = page_down(settings.pinned_tokens)
    return pinned if computed is None else min(pinned, computed)


def transient_bytes(settings: MemorySettings) -> int:
    """What the indexer takes for a moment in the last chunk of the longest prompt."""
    chunk = min(settings.pool.chunk_tokens, settings.context_tokens)
    pairs = chunk * settings.context_tokens
    return round(constants().indexer_bytes_per_pair.value * pairs / settings.query_row_ranks)


def budget_rank(
    shape: ModelShape, settings: MemorySettings, rank: int, *, tokens: int | None = None
) -> RankBudget:
    """`tokens`: a pool of this size instead of the one that would be served."""
    known = constants()
    size = served_tokens(shape, settings) if tokens is None else tokens
    items = [
        _measured("system and engine processes", known.before_load_gib),
        *([_measured("head-only processes", known.head_only_gib)] if rank == 0 else []),
        *_weight_items(shape, settings),
        *_engram_items(shape, settings),
        *_pool_items(shape, settings, size),
        _work_item(settings),
        _measured("CUDA graphs", known.graph_gib),
        _nccl_item(settings),
    ]
    return RankBudget(
        rank=rank,
        usable_bytes=settings.usable_bytes,
        start_items=tuple(items),
        serving_growth=_measured("growth while serving", known.serving_growth_gib),
        prefill_transient=_transient_item(settings),
    )


def with_chunk(settings: MemorySettings, chunk_tokens: int) -> MemorySettings:
    return dataclasses.replace(settings, pool=dataclasses.replace(settings.pool, chunk_tokens=chunk_tokens))


def _measured(name: str, constant: Constant) -> Item:
    """An item that is a constant, measured in GiB."""
    return Item(
        name=name, num_bytes=gib(constant), how=f"{constant.value:g} GiB, measured", source=constant.source
    )


def _weight_items(shape: ModelShape, settings: MemorySettings) -> list[Item]:
    split = settings.split
    how = f"tp {split.tp}, ep {split.ep}, {split.head_groups} head groups, expert width {split.expert_width}"
    return [
        Item(name=part.value, num_bytes=size, how=_part_formula(part, how))
        for part, size in rank_part_bytes(shape, split).items()
        if size and (settings.pool.verify_tokens or not part.is_draft)
    ]


def _part_formula(part: Part, how: str) -> str:
    if part in (Part.REPLICATED, Part.DRAFT_REPLICATED, Part.VISION):
        return "stored bytes, on every rank"
    if part in (Part.WO_A, Part.DRAFT_WO_A):
        return f"stored bytes x 2 (SGLang keeps it as BF16) / tp, padded ({how})"
    return f"stored bytes / tp, padded ({how})"


def _engram_items(shape: ModelShape, settings: MemorySettings) -> list[Item]:
    items = []
    if settings.engram_resident:
        size = engram_rank_bytes(shape, settings.split)
        items.append(Item(name=Part.ENGRAM_ROWS.value, num_bytes=size, how="stored bytes / tp"))
    for name, size, key in (
        ("Engram row cache", settings.engram_cache_bytes, "cache_gib"),
        ("Engram read-ahead", settings.engram_lookahead_bytes, "lookahead_gib"),
    ):
        if size:
            items.append(Item(name=name, num_bytes=size, how=f"extensions.engram.{key}"))
    return items


def _pool_items(shape: ModelShape, settings: MemorySettings, tokens: int) -> list[Item]:
    config, pool = shape.config, settings.pool
    per_token = bytes_per_token(config, has_draft=pool.verify_tokens > 0, kv_layout=pool.kv_layout)
    return [
        Item(
            name="KV pool",
            num_bytes=round(tokens * per_token),
            how=f"{tokens} tokens x {per_token:.2f} B (SGLang 0.5.23, {pool.kv_layout.upper()} layout, "
            "all ranks hold all of it)",
        ),
        Item(
            name="sliding-window pool",
            num_bytes=swa_bytes(config, pool),
            how=f"{swa_tokens(config, pool)} tokens for {pool.max_running_requests} requests, "
            f"chunk {pool.chunk_tokens}, {config.num_hidden_layers} layers",
        ),
        Item(
            name="pair state",
            num_bytes=pair_state_bytes(config, pool),
            how="a float32 ring per request slot and ratio-2 layer",
        ),
    ]


def _work_item(settings: MemorySettings) -> Item:
    known = constants().work_gib_per_1024_chunk
    chunks = max(1.0, min(settings.pool.chunk_tokens, settings.context_tokens) / 1024)
    return Item(
        name="workspaces",
        num_bytes=round(known.value * GIB * chunks),
        how=f"{known.value:g} GiB x {chunks:g} (chunk / 1024, at least 1)",
        source=known.source,
    )


def _nccl_item(settings: MemorySettings) -> Item:
    known = constants().nccl_small_gb if settings.nccl_buffers_small else constants().nccl_default_gb
    sizes = "the four small values" if settings.nccl_buffers_small else "NCCL's own sizes"
    return Item(
        name="NCCL buffers",
        num_bytes=gb(known) if settings.split.tp > 1 else 0,
        how=f"{known.value:g} GB with {sizes}",
        source=known.source,
    )


def _transient_item(settings: MemorySettings) -> Item:
    known = constants().indexer_bytes_per_pair
    chunk = min(settings.pool.chunk_tokens, settings.context_tokens)
    how = f"{known.value:g} B x chunk {chunk} x prefix {settings.context_tokens}"
    if settings.query_row_ranks > 1:
        how += f" / {settings.query_row_ranks} ranks"
    return Item(name="prefill transient", num_bytes=transient_bytes(settings), how=how, source=known.source)

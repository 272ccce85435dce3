"""Pure: one recipe on one model shape -> budgets of all ranks and the problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from launcher.errors import UsageError
from launcher.fit.constants import GIB, constants
from launcher.fit.fit_problem import FitProblem
from launcher.fit.fit_rules import (
    budget_problems,
    largest_safe_chunk,
    largest_safe_pool,
    min_mem_fraction,
)
from launcher.fit.kv_pool import PAGE_TOKENS, PoolSettings, bytes_per_token
from launcher.fit.memory_budget import MemorySettings, RankBudget, budget_rank, gib, served_tokens
from launcher.fit.model_shape import ModelShape
from launcher.fit.rank_weights import plan_split, split_problems
from launcher.recipe import Recipe
from launcher.recipe_rules import is_v41

# What SGLang takes where the recipe says nothing; said in a warning.
DEFAULT_CHUNK_TOKENS = 8192
DEFAULT_RUNNING_REQUESTS = 48

_SMALL_NCCL = {"NCCL_BUFFSIZE": 1 << 20, "NCCL_LL128_BUFFSIZE": 256 << 10, "NCCL_MAX_NCHANNELS": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Values of the command line that stand over the recipe's; None leaves the recipe's."""

    nodes: int | None = None
    ep: int | None = None
    heads: int | None = None
    expert_width: int | None = None
    draft_experts: int | None = None
    context_tokens: int | None = None
    chunk_tokens: int | None = None
    pool_tokens: int | None = None
    usable_bytes: int | None = None
    query_row_ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """`kv_tokens` is the pool that would be served; the safe values are for the head, the poorest rank."""

    recipe: str
    shape: ModelShape
    settings: MemorySettings
    budgets: tuple[RankBudget, ...]
    problems: tuple[FitProblem, ...]
    kv_tokens: int
    bytes_per_token: float
    safe_pool_tokens: int
    safe_chunk_tokens: int | None
    min_mem_fraction: float

    @property
    def fits(self) -> bool:
        return not self.refusals

    @property
    def refusals(self) -> tuple[FitProblem, ...]:
        return tuple(problem for problem in self.problems if problem.level == "refuse")


def can_fit(recipe: Recipe) -> bool:
    """True for recipes of the model and the machines whose memory is known here."""
    return recipe.engine.runtime != "cpu" and is_v41(recipe)


def fit_recipe(recipe: Recipe, shape: ModelShape, what_if: WhatIf | None = None) -> Fit:
    """Raises UsageError for a recipe of the CPU engine: it has no Spark to fit on."""
    if recipe.engine.runtime == "cpu":
        raise UsageError(
            f"fit must be given a recipe for Sparks, got {recipe.name}, which runs the CPU engine",
            hint="sparkctl fit --recipe v41-flash-3x; sparkctl recipe list",
        )
    asked = what_if or WhatIf()
    settings = memory_settings(recipe, shape, asked)
    split = settings.split
    backend = recipe.extensions.experts.backend
    if backend == "auto" and recipe.server.moe_runner_backend:
        backend = recipe.server.moe_runner_backend  # type: ignore[assignment]
    problems = (
        *split_problems(shape.config, split, expert_backend=backend),
        *budget_problems(shape, settings),
        *_assumed(recipe, asked),
    )
    return Fit(
        recipe=recipe.name,
        shape=shape,
        settings=settings,
        budgets=tuple(budget_rank(shape, settings, rank) for rank in range(split.tp)),
        problems=problems,
        kv_tokens=served_tokens(shape, settings),
        bytes_per_token=bytes_per_token(
            shape.config,
            has_draft=settings.pool.verify_tokens > 0,
            kv_layout=settings.pool.kv_layout,
        ),
        safe_pool_tokens=largest_safe_pool(shape, settings),
        safe_chunk_tokens=largest_safe_chunk(shape, settings),
        min_mem_fraction=min_mem_fraction(shape, settings),
    )


def memory_settings(recipe: Recipe, shape: ModelShape, asked: WhatIf) -> MemorySettings:
    """The recipe's own values, with those of the command line over them."""
    server, engram, config = recipe.server, recipe.extensions.engram, shape.config
    tp = recipe.parallelism.tp if asked.nodes is None else asked.nodes
    ep = recipe.parallelism.ep if asked.ep is None else asked.ep
    if asked.nodes is not None and asked.ep is None and tp % ep:
        ep = 1
    context = asked.context_tokens or server.context_length or config.max_position_embeddings
    chunk = asked.chunk_tokens or _chunk_of(recipe, shape, asked)
    dspark = recipe.extensions.dspark
    return MemorySettings(
        split=plan_split(
            config,
            tp=tp,
            ep=ep,
            heads=asked.heads,
            expert_width=asked.expert_width,
            draft_experts=asked.draft_experts,
        ),
        pool=PoolSettings(
            # auto is decided at boot: what the larger layout needs must be there.
            kv_layout="v41" if recipe.extensions.kv_layout == "v41" else "v4",
            max_running_requests=server.max_running_requests or DEFAULT_RUNNING_REQUESTS,
            chunk_tokens=context if chunk < 0 else chunk,
            verify_tokens=dspark.block_size + 1 if dspark.enabled else 0,
        ),
        context_tokens=context,
        pinned_tokens=asked.pool_tokens or server.max_total_tokens,
        mem_fraction=server.mem_fraction_static,
        nccl_buffers_small=_has_small_nccl_buffers(recipe.environment),
        engram_resident=engram.residence != "nvme",
        engram_cache_bytes=round(engram.cache_gib * GIB),
        engram_lookahead_bytes=round(engram.lookahead_gib * GIB),
        usable_bytes=gib(constants().usable_gib) if asked.usable_bytes is None else asked.usable_bytes,
        query_row_ranks=asked.query_row_ranks,
    )


def _chunk_of(recipe: Recipe, shape: ModelShape, asked: WhatIf) -> int:
    """The recipe's own; for `auto` the largest that is safe with what is asked for, a page when none is."""
    own = recipe.server.chunked_prefill_size
    if own != "auto":
        return own or DEFAULT_CHUNK_TOKENS
    settings = memory_settings(recipe, shape, replace(asked, chunk_tokens=PAGE_TOKENS))
    return largest_safe_chunk(shape, settings) or PAGE_TOKENS


def _assumed(recipe: Recipe, asked: WhatIf) -> Iterator[FitProblem]:
    server = recipe.server
    if not (asked.chunk_tokens or server.chunked_prefill_size):
        yield FitProblem.warn(
            "assumed",
            "server.chunked_prefill_size must be set to be sure, got none: counted with "
            f"{DEFAULT_CHUNK_TOKENS}",
            "set it in the recipe, or try one: --chunk 1024",
        )
    if server.max_running_requests is None:
        yield FitProblem.warn(
            "assumed",
            "server.max_running_requests must be set to be sure, got none: counted with "
            f"{DEFAULT_RUNNING_REQUESTS}",
            "set it in the recipe",
        )


def _has_small_nccl_buffers(environment: Mapping[str, str]) -> bool:
    """All four values of the public recipes, or smaller; one alone does not do it."""
    for name, most in _SMALL_NCCL.items():
        value = environment.get(name, "")
        if not value.isdecimal() or not 0 < int(value) <= most:
            return False
    return environment.get("NCCL_PROTO") == "^LL128"

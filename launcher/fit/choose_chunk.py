"""Pure: the prefill chunk of a recipe that says `auto`, and why it is that one."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.errors import ConfigError
from launcher.fit.constants import GB, constants
from launcher.fit.fit_recipe import WhatIf, can_fit, memory_settings
from launcher.fit.fit_rules import largest_safe_chunk, product_limit
from launcher.fit.kv_pool import PAGE_TOKENS
from launcher.fit.memory_budget import budget_rank, with_chunk
from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenChunk:
    tokens: int
    why: str


def choose_chunk(recipe: Recipe, shape: ModelShape | None = None) -> ChosenChunk | None:
    """None for a recipe that names its chunk. Raises ConfigError where the rule has no answer."""
    if recipe.server.chunked_prefill_size != "auto":
        return None
    if not can_fit(recipe):
        raise ConfigError(
            f"server.chunked_prefill_size must be a number in recipe {recipe.name}, got auto: the "
            f"memory rule knows DeepSeek-V4.1-Flash on Sparks only",
            hint="set it to whole pages of 256 tokens: server.chunked_prefill_size: 1024",
        )
    known = shape or shipped_shape("v41-flash")
    settings = memory_settings(recipe, known, WhatIf(chunk_tokens=PAGE_TOKENS))
    chunk = largest_safe_chunk(known, settings)
    if chunk is None:
        raise ConfigError(
            f"server.chunked_prefill_size: auto must find a chunk for {settings.context_tokens:,} tokens, "
            f"got none: not even {PAGE_TOKENS} tokens leave {constants().floor_gb.value:g} GB on the head",
            hint=f"lower server.context_length or server.max_total_tokens; sparkctl fit --recipe "
            f"{recipe.name} says what is held",
        )
    left = budget_rank(known, with_chunk(settings, chunk), 0).left_bytes / GB
    limit = product_limit(settings)
    product = chunk * settings.context_tokens
    bound = (
        f"{chunk} x {settings.context_tokens} = {product:.3g}, and no more than {limit:.3g} has run on "
        f"{settings.split.tp} Sparks"
        if limit is not None and (chunk + PAGE_TOKENS) * settings.context_tokens > limit
        else f"{constants().indexer_bytes_per_pair.value:g} B x {chunk} x {settings.context_tokens} leaves "
        f"{left:.1f} GB on the head, the next page less than {constants().floor_gb.value:g} GB"
    )
    return ChosenChunk(tokens=chunk, why=f"the largest in whole pages for the context: {bound}")


def with_chosen_chunk(recipe: Recipe) -> tuple[Recipe, str]:
    """The recipe with a number for its chunk, and what to say about it; empty when it had one."""
    chosen = choose_chunk(recipe)
    if chosen is None:
        return recipe, ""
    server = recipe.server.model_copy(update={"chunked_prefill_size": chosen.tokens})
    note = f"chunked_prefill_size {chosen.tokens} (auto): {chosen.why}"
    return recipe.model_copy(update={"server": server}), note

"""Pure: prefill rows split over the ranks (parallelism.sequence_parallel): what a plan says of them."""

from __future__ import annotations

from launcher.errors import ConfigError
from launcher.recipe import Recipe

SAID = (
    "prefill rows are split over the ranks: ran on two H200 with a narrow model, where 64 of 64 replies were "
    "equal to the bit and prompts of 4k, 16k and 65k tokens in chunks of 8192 were computed at 0.918, 0.940 "
    "and 1.041 times the speed (results/gpu-h200-2026-11-30-two); not run on a GB10, nor on more GPUs"
)
UNDO = (
    "compare prefill with parallelism.sequence_parallel: off; parallelism.sequence_parallel_from keeps "
    "chunks below it whole"
)


def split_rows_note(recipe: Recipe) -> tuple[str, ...]:
    """For the plan of a recipe that splits rows on GPUs: what was measured, and from which chunk on."""
    parallel = recipe.parallelism
    if parallel.sequence_parallel == "off" or recipe.engine.runtime == "cpu":
        return ()
    return (f"{SAID}; chunks of {parallel.sequence_parallel_from} tokens and more are split",)


def check_split(recipe: Recipe) -> None:
    """Raises ConfigError where no chunk is long enough to be split. `auto` is a number by now."""
    parallel, chunk = recipe.parallelism, recipe.server.chunked_prefill_size
    if parallel.sequence_parallel == "off" or not isinstance(chunk, int) or chunk <= 0:
        return
    if chunk < parallel.sequence_parallel_from:
        raise ConfigError(
            f"parallelism.sequence_parallel_from must be at most the chunk of {chunk} tokens, got "
            f"{parallel.sequence_parallel_from}: no rows would be split",
            hint="lower it, raise server.chunked_prefill_size (a shorter server.context_length pays for it), "
            "or set parallelism.sequence_parallel: off",
        )

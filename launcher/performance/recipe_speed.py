"""What a recipe should reach: its stack from its own settings, decode by streams, prompts by length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.fit.choose_chunk import with_chosen_chunk
from launcher.fit.model_config import ModelConfig
from launcher.fit.model_shape import ModelShape, derive_part_bytes, shipped_shape
from launcher.performance.acceptance import CODE, PROSE, tokens_with_block
from launcher.performance.changes import LIVE_TOKENS
from launcher.performance.constants import Fitted, fitted
from launcher.performance.decode_step import StepTime, decode_step
from launcher.performance.prefill import PrefillTime, prefill
from launcher.performance.stack import Stack
from launcher.recipe import Recipe
from launcher.recipe_rules import is_v41

_COLLECTIVE = {1: "nccl_pair", 2: "nccl_pair", 3: "nccl_triangle", 4: "nccl_switch"}
_HEADS_PER_GROUP = 8
_PROMPTS = (4096, 32768, 93000, 262144)
DEFAULT_CHUNK = 8192

# Class defaults of SGLang 0.5.23 (srt/configs/deepseek_v4.py), which are V4-Flash's; its compressors and
# indexers are left out. No config.json of it was read.
_V4_FLASH = {
    "vocab_size": 129280, "hidden_size": 4096, "num_hidden_layers": 43, "max_position_embeddings": 65536,
    "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024,
    "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "compress_ratios": [0] * 43,
    "kv_source_layer_ids": [], "index_source_layer_ids": [], "index_n_heads": 64, "index_head_dim": 128,
    "hc_mult": 4, "engram_layer_ids": [], "engram_num_embeddings": [], "engram_max_ngram_size": 1,
    "engram_n_heads": 1, "engram_head_dim": 1, "num_nextn_predict_layers": 0, "dspark_markov_rank": 1,
    "dspark_n_routed_experts": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpeed:
    text: str
    streams: int
    tokens_per_step: float
    step: StepTime

    @property
    def tokens_per_s(self) -> float:
        return 1000 * self.streams * self.tokens_per_step / self.step.total_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpeed:
    tokens: int
    time: PrefillTime

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.time.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpeed:
    """`groups`: copies of the model, each with streams of its own. `short_wait_s`: a short request that comes
    while a long cold prompt is read: a chunk, the decode rounds after it, and the chunk that takes it in."""

    recipe: str
    groups: int
    stack: Stack
    decode: tuple[DecodeSpeed, ...]
    prompts: tuple[PromptSpeed, ...]
    short_wait_s: float | None
    long_wait_s: float


def v4_flash_shape() -> ModelShape:
    config = ModelConfig.model_validate(_V4_FLASH)
    return ModelShape(
        origin="class defaults of SGLang 0.5.23", config=config, part_bytes=derive_part_bytes(config)
    )


def shape_of(recipe: Recipe) -> ModelShape:
    """Raises UsageError for a model or an engine that the model of speed does not know."""
    if recipe.engine.runtime != "cpu":
        if is_v41(recipe):
            return shipped_shape("v41-flash")
        if (recipe.model.repo or "").lower() == "deepseek-ai/deepseek-v4-flash":
            return v4_flash_shape()
    raise UsageError(
        f"predict must be given a recipe of DeepSeek-V4.1-Flash or V4-Flash for Sparks, got {recipe.name}",
        hint="sparkctl predict --recipe v41-flash-3x; sparkctl recipe list",
    )


def stack_of(recipe: Recipe, shape: ModelShape) -> Stack:
    """Only what the recipe says. Engram rows from NVMe are read behind other work in a decode step; a prompt
    waits for them unless the recipe gives memory for rows that are read ahead."""
    parallel, extensions = recipe.parallelism, recipe.extensions
    engram, dspark = extensions.engram, extensions.dspark
    tp, groups = parallel.tp, shape.config.o_groups
    chunk = with_chosen_chunk(recipe)[0].server.chunked_prefill_size
    return Stack(
        tp=tp,
        ep=parallel.ep,
        heads=-(-groups // tp) * tp * _HEADS_PER_GROUP,
        collective=_COLLECTIVE[tp],
        block=dspark.block_size if dspark.enabled else 0,
        verify="cap" if dspark.verify == "cap-accept" else "full",
        engram_hidden=True,
        engram_read_share=1.0 if engram.residence == "nvme" and not engram.lookahead_gib else 0.0,
        chunk_tokens=chunk if isinstance(chunk, int) and chunk > 0 else DEFAULT_CHUNK,
        sequence_parallel=parallel.sequence_parallel == "prefill",
        wo_a_bf16=extensions.wo_a != "fp8",
        kv_layout="v41" if extensions.kv_layout == "v41" else "v4",
        live_tokens=LIVE_TOKENS,
    )


def recipe_speed(recipe: Recipe, known: Fitted | None = None) -> RecipeSpeed:
    shape, parameters = shape_of(recipe), known or fitted()
    stack = stack_of(recipe, shape)
    most = max(1, recipe.server.max_running_requests or 1)
    texts: Mapping[str, float] = {
        name: tokens_with_block(tokens, stack.block) for name, tokens in (("prose", PROSE), ("code", CODE))
    }
    if not stack.block:
        texts = {"any text": 1.0}
    decode = tuple(
        DecodeSpeed(
            text=text,
            streams=streams,
            tokens_per_step=tokens,
            step=decode_step(shape, stack, parameters, streams=streams, tokens_per_step=tokens),
        )
        for text, tokens in texts.items()
        for streams in sorted({1, min(4, most), most})
    )
    context = recipe.server.context_length or shape.config.max_position_embeddings
    prompts = tuple(
        PromptSpeed(tokens=tokens, time=prefill(shape, stack, parameters, prompt_tokens=tokens))
        for tokens in _PROMPTS
        if tokens <= context
    )
    longest = prompts[-1].time.total_s if len(prompts) < 3 else prompts[2].time.total_s
    return RecipeSpeed(
        recipe=recipe.name,
        groups=recipe.parallelism.groups,
        stack=stack,
        decode=decode,
        prompts=prompts,
        short_wait_s=_short_wait_s(recipe, shape, stack, parameters, decode[0].step.total_ms),
        long_wait_s=longest,
    )


def _short_wait_s(
    recipe: Recipe, shape: ModelShape, stack: Stack, known: Fitted, step_ms: float
) -> float | None:
    """None where short requests wait for the whole long prompt: first come, first served."""
    flags = recipe.server.flags
    if flags.get("schedule-policy") != "shortest-prefill-first":
        return None
    deep = prefill(shape, stack, known, prompt_tokens=93000)
    per_chunk = (deep.total_s - deep.tail_s) * stack.chunk_tokens / 93000
    interval = flags.get("prefill-decode-interval", 0)
    rounds = interval if isinstance(interval, int) else 0
    return 2 * per_chunk + rounds * step_ms / 1000 + deep.tail_s

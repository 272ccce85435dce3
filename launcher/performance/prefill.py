"""Tokens per second of one cold prompt: whole chunks through the encoder layers, then the tail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from launcher.fit.model_shape import ModelShape, expert_bytes
from launcher.fit.rank_weights import plan_split, rank_part_bytes
from launcher.fit.weight_classes import Part
from launcher.performance.collectives import gather_s, large_allreduce_s
from launcher.performance.constants import Fitted, constant
from launcher.performance.experts import distinct_experts
from launcher.performance.stack import Stack

_ACTIVATION_BYTES = 2
_COLLECTIVES_PER_LAYER = 2
# Heads of one rank that `prefill_head_us` is counted in: sixteen is TP4.
_HEADS_UNIT = 16
_DENSE = (Part.ATTENTION, Part.WO_A, Part.SHARED, Part.REPLICATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTime:
    """Seconds of each item for the whole prompt."""

    experts_s: float
    dense_read_s: float
    tokens_s: float
    collectives_s: float
    engram_read_s: float
    engram_exchange_s: float
    index_s: float
    tail_s: float

    @property
    def total_s(self) -> float:
        return sum(self.items().values())

    def items(self) -> Mapping[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def prefill(shape: ModelShape, stack: Stack, known: Fitted, *, prompt_tokens: int) -> PrefillTime:
    """One prompt alone on the machine, nothing of it cached."""
    config = shape.config
    read = constant("memory_read_gb_s") * 1e9
    split = plan_split(config, tp=stack.tp, ep=stack.ep, heads=stack.heads, expert_width=stack.expert_width)
    parts = rank_part_bytes(shape, split)
    layers = _encoder_layers(shape)
    share = layers / config.num_hidden_layers
    num_chunks = prompt_tokens / stack.chunk_tokens
    # A chunk reads every expert once, or computes: the longer of the two.
    one = expert_bytes(config, split.expert_width) / stack.ep
    touched = distinct_experts(
        config.n_routed_experts, int(constant("experts_per_token")), min(stack.chunk_tokens, prompt_tokens)
    )
    read_s = layers * touched * one / read
    flops = layers * constant("experts_per_token") * 3 * 2 * config.moe_intermediate_size * config.hidden_size
    compute_s = stack.chunk_tokens * flops / stack.tp / (known.prefill_expert_tflops * 1e12)
    message = prompt_tokens * config.hidden_size * _ACTIVATION_BYTES
    return PrefillTime(
        experts_s=num_chunks * max(read_s, compute_s),
        dense_read_s=num_chunks * share * sum(parts[part] for part in _DENSE) / read,
        tokens_s=1e-6 * prompt_tokens * share_of_layers(shape) * _token_us(stack, known),
        collectives_s=layers * _COLLECTIVES_PER_LAYER * large_allreduce_s(stack.tp, message),
        engram_read_s=_engram_rows(shape, stack, prompt_tokens)
        * stack.engram_read_share
        / constant("nvme_rows_per_s"),
        engram_exchange_s=_engram_exchange_s(shape, stack, prompt_tokens),
        index_s=_index_s(stack, known, prompt_tokens),
        tail_s=_tail_s(shape, stack, one, parts) + known.prompt_overhead_s,
    )


def _encoder_layers(shape: ModelShape) -> float:
    """Layers that see the whole prompt; a model without the split runs them all."""
    return constant("encoder_layers") if shape.config.engram_layer_ids else shape.config.num_hidden_layers


def share_of_layers(shape: ModelShape) -> float:
    """Layers against the twenty that the fitted time of a token is for."""
    return _encoder_layers(shape) / constant("encoder_layers")


def _token_us(stack: Stack, known: Fitted) -> float:
    """What every token costs beside experts: replicated work, split by rows with sequence parallelism, and
    work of the rank's heads."""
    replicated = known.prefill_token_us / (stack.tp if stack.sequence_parallel else 1)
    return replicated + known.prefill_head_us * stack.heads / stack.tp / _HEADS_UNIT


def _engram_rows(shape: ModelShape, stack: Stack, tokens: int) -> float:
    """Rows that one node reads."""
    config = shape.config
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads * len(config.engram_layer_ids)
    return tokens * columns / stack.tp


def _engram_exchange_s(shape: ModelShape, stack: Stack, tokens: int) -> float:
    """Rows of all columns on every rank: BF16 by all-reduce, or FP8 with its scales by all-gather."""
    config = shape.config
    values = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
    layers = len(config.engram_layer_ids)
    if stack.engram_fp8_gather:
        return layers * gather_s(stack.tp, tokens * (values + values / 32))
    return layers * large_allreduce_s(stack.tp, tokens * values * _ACTIVATION_BYTES)


def _index_s(stack: Stack, known: Fitted, prompt_tokens: int) -> float:
    """Every token is scored against all before it:
    tokens squared over two, on every rank unless rows are split."""
    pairs = prompt_tokens**2 / 2
    splits = stack.prefill_split_rows and prompt_tokens >= constant("indexer_split_ranks_from_tokens")
    return 1e-9 * known.index_pair_ns * pairs / (stack.tp if splits else 1)


def _tail_s(shape: ModelShape, stack: Stack, one: float, parts: Mapping[Part, int]) -> float:
    """The decoder layers on the prompt's last tokens: nearly all experts are read for few tokens."""
    config = shape.config
    layers = config.num_hidden_layers - _encoder_layers(shape)
    read = constant("memory_read_gb_s") * 1e9
    touched = distinct_experts(
        config.n_routed_experts, int(constant("experts_per_token")), constant("decoder_tail_tokens")
    )
    dense = sum(parts[part] for part in _DENSE) * layers / config.num_hidden_layers
    return (layers * touched * one + dense) / read

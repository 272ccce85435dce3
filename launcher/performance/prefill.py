"""Tokens per second of one cold prompt: whole chunks through the encoder layers, then the tail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from launcher.fit.model_shape import BLOCK, ModelShape
from launcher.performance.collectives import gather_s, large_allreduce_s
from launcher.performance.constants import Fitted, constant
from launcher.performance.rank_work import RankWork, busy_s, dense_s, experts_s, rank_work, touched_experts
from launcher.performance.stack import Stack

_ACTIVATION_BYTES = 2
_COLLECTIVES_PER_LAYER = 2
_MHC_CALLS_PER_LAYER = 2
# Rows and residual width of the published mHC times (hidden 5120, four copies).
_MHC_ROWS, _MHC_WIDTH = 4096, 4 * 5120


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTime:
    """Seconds of each item for the whole prompt."""

    experts_s: float
    dense_s: float
    attention_s: float
    mhc_s: float
    collectives_s: float
    engram_read_s: float
    engram_exchange_s: float
    index_s: float
    tail_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        return sum(self.items().values())

    def items(self) -> Mapping[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def prefill(shape: ModelShape, stack: Stack, known: Fitted, *, prompt_tokens: int) -> PrefillTime:
    """One prompt alone on the machine, nothing of it cached."""
    config, work = shape.config, rank_work(shape, stack)
    layers = _encoder_layers(shape)
    share = layers / config.num_hidden_layers
    chunk = min(stack.chunk_tokens, prompt_tokens)
    num_chunks = prompt_tokens / chunk
    # Per-token work that every rank repeats; with sequence parallelism each rank has 1 / TP of the rows.
    row_split = stack.tp if stack.sequence_parallel else 1
    touched = touched_experts(shape, chunk, known, one_text=True)
    message = prompt_tokens * config.hidden_size * _ACTIVATION_BYTES
    return PrefillTime(
        experts_s=num_chunks * experts_s(work, layers, touched, chunk, constant("experts_per_token"), known),
        dense_s=num_chunks
        * share
        * dense_s(work.dense_read, work.sharded_weights + work.replicated / row_split, chunk, known),
        attention_s=busy_s(
            0, prompt_tokens * layers * _attention_operations(shape, stack), known.kernel_tflops
        ),
        mhc_s=prompt_tokens * layers * _mhc_row_s(shape, stack) / row_split,
        collectives_s=layers * _COLLECTIVES_PER_LAYER * large_allreduce_s(stack.tp, message),
        engram_read_s=_engram_rows(shape, stack, prompt_tokens)
        * stack.engram_read_share
        / constant("nvme_rows_per_s"),
        engram_exchange_s=_engram_exchange_s(shape, stack, prompt_tokens),
        index_s=_index_s(shape, stack, known, prompt_tokens),
        tail_s=_tail_s(shape, work, known),
        overhead_s=known.prompt_overhead_s,
    )


def _encoder_layers(shape: ModelShape) -> float:
    """Layers that see the whole prompt; a model without the split runs them all."""
    return constant("encoder_layers") if shape.config.engram_layer_ids else shape.config.num_hidden_layers


def _attention_operations(shape: ModelShape, stack: Stack) -> float:
    """Of one token and layer on one rank: scores and values over the window and the selected positions."""
    config = shape.config
    selected = constant("index_topk") if config.kv_source_layer_ids else 0
    # Prefill kernels have 8, 16, 32, 64 or 128 heads: 24 become 32.
    heads = 8 << max(0, math.ceil(math.log2(stack.heads / stack.tp / 8)))
    return heads * (config.sliding_window + selected) * 2 * 2 * config.head_dim


def _mhc_row_s(shape: ModelShape, stack: Stack) -> float:
    """Statistics of the residual's copies, of one token and layer: published times, by width."""
    config = shape.config
    call = constant("mhc_fused_call_ms_at_4096_rows" if stack.fused_mhc else "mhc_call_ms_at_4096_rows")
    width = config.hc_mult * config.hidden_size / _MHC_WIDTH
    return 1e-3 * call / _MHC_ROWS * width * _MHC_CALLS_PER_LAYER


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
        return layers * gather_s(stack.tp, tokens * values * (1 + 1 / BLOCK))
    return layers * large_allreduce_s(stack.tp, tokens * values * _ACTIVATION_BYTES)


def _index_s(shape: ModelShape, stack: Stack, known: Fitted, prompt_tokens: int) -> float:
    """Every token is scored against all before it:
    tokens squared over two, on every rank unless rows are split."""
    if not shape.config.index_source_layer_ids:
        return 0.0
    pairs = prompt_tokens**2 / 2
    splits = stack.prefill_split_rows and prompt_tokens >= constant("indexer_split_ranks_from_tokens")
    return 1e-9 * known.index_pair_ns * pairs / (stack.tp if splits else 1)


def _tail_s(shape: ModelShape, work: RankWork, known: Fitted) -> float:
    """The decoder layers on the prompt's last tokens: many experts are read for few tokens."""
    config = shape.config
    layers = config.num_hidden_layers - _encoder_layers(shape)
    rows = constant("decoder_tail_tokens")
    touched = touched_experts(shape, rows, known, one_text=True)
    dense = dense_s(work.dense_read, work.dense_weights, rows, known) * layers / config.num_hidden_layers
    return experts_s(work, layers, touched, rows, constant("experts_per_token"), known) + dense

"""Time of one decode step: draft, verify and everything between, item by item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from launcher.fit.model_shape import BLOCK, ModelShape, expert_bytes
from launcher.fit.rank_weights import plan_split, rank_part_bytes
from launcher.fit.weight_classes import Part
from launcher.performance.collectives import small_allreduce_s
from launcher.performance.constants import Fitted, constant
from launcher.performance.experts import distinct_experts, group_imbalance, independent_rows
from launcher.performance.stack import Stack

_ACTIVATION_BYTES = 2
# An int64 slot and a float32 score (SGLang 0.5.23, v41_indexer/scoring.py, dense branch).
_SLOT_AND_SCORE_BYTES = 12
_DENSE = (Part.ATTENTION, Part.SHARED, Part.REPLICATED)
_DRAFT_DENSE = (Part.DRAFT_ATTENTION, Part.DRAFT_SHARED, Part.DRAFT_REPLICATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Milliseconds of each item; they follow one another."""

    experts_ms: float
    expert_wait_ms: float
    dense_ms: float
    draft_ms: float
    collectives_ms: float
    engram_ms: float
    index_ms: float
    rows_ms: float
    overhead_ms: float

    @property
    def total_ms(self) -> float:
        return sum(self.items().values())

    def items(self) -> Mapping[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def verify_rows(
    stack: Stack, tokens_per_step: float, known: Fitted, planned_rows: float | None
) -> tuple[float, float]:
    """Rows of a request's block that pass through every kernel, and those that draw experts of their own."""
    block = stack.block + 1.0
    if stack.verify == "planner":
        assert planned_rows is not None
        return planned_rows, planned_rows
    if stack.verify == "cap":
        return block, tokens_per_step + known.live_rejected_share * (block - tokens_per_step)
    return block, block


def decode_step(
    shape: ModelShape,
    stack: Stack,
    known: Fitted,
    *,
    streams: int,
    tokens_per_step: float,
    planned_rows: float | None = None,
) -> StepTime:
    """`tokens_per_step`: accepted tokens and the bonus token, of one request."""
    config = shape.config
    split = plan_split(config, tp=stack.tp, ep=stack.ep, heads=stack.heads, expert_width=stack.expert_width)
    parts = rank_part_bytes(shape, split)
    read = constant("memory_read_gb_s") * 1e9
    rows, live = verify_rows(stack, tokens_per_step, known, planned_rows)
    strangers = independent_rows(
        streams,
        live,
        row_novelty=known.row_novelty,
        stream_novelty=known.stream_novelty_one_prompt if stack.one_prompt else 1.0,
    )
    touched = distinct_experts(config.n_routed_experts, int(constant("experts_per_token")), strangers)
    one = expert_bytes(config, split.expert_width) / stack.ep
    experts_s = config.num_hidden_layers * touched * one / read
    slow = known.stock_dense_slowdown if stack.dense == "stock" else 1.0
    head = parts[Part.VOCABULARY] / 2
    dense = sum(parts[part] for part in _DENSE) + _wo_a(parts[Part.WO_A], stack)
    return StepTime(
        experts_ms=1e3 * experts_s,
        expert_wait_ms=1e3 * experts_s * (group_imbalance(touched, stack.ep) - 1),
        dense_ms=1e3 * (dense * slow + head) / read,
        draft_ms=1e3 * _draft_s(shape, stack, parts, one, streams, slow),
        collectives_ms=1e3 * _collectives_s(shape, stack, streams * rows),
        engram_ms=0.0
        if stack.engram_hidden or not config.engram_layer_ids
        else constant("engram_exposed_ms"),
        index_ms=1e3 * _index_s(shape, stack, streams * rows),
        rows_ms=known.row_cost_ms * streams * rows,
        overhead_ms=known.step_overhead_ms,
    )


def _wo_a(size: int, stack: Stack) -> float:
    """`rank_part_bytes` counts it as BF16, as SGLang holds it."""
    return size if stack.wo_a_bf16 else size / 2


def _collectives_s(shape: ModelShape, stack: Stack, rows: float) -> float:
    """The published number of all-reduces of the residual's width. An all-gather of FP8 Engram rows takes the
    place of one of BF16 rows in each Engram layer; its latency is taken as that of an all-reduce of its
    bytes."""
    config = shape.config
    if stack.tp == 1:
        return 0.0
    number = constant("collectives_per_step_tp4" if stack.tp >= 4 else "collectives_per_step_tp3")
    total = number * small_allreduce_s(stack.collective, rows * config.hidden_size * _ACTIVATION_BYTES)
    if stack.engram_fp8_gather:
        values = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
        bf16 = small_allreduce_s(stack.collective, rows * values * _ACTIVATION_BYTES)
        fp8 = small_allreduce_s(stack.collective, rows * values * (1 + 1 / BLOCK) / 2)
        total -= len(config.engram_layer_ids) * (bf16 - fp8)
    return total


def _index_s(shape: ModelShape, stack: Stack, rows: float) -> float:
    """Keys that are read, and slots and scores that are written and read again,
    of every row and index layer."""
    config = shape.config
    key = config.index_head_dim / 2 + config.index_head_dim / 32
    positions = sum(
        stack.index_tokens / max(1, config.compress_ratios[layer]) for layer in config.index_source_layer_ids
    )
    return positions * rows * (key + 2 * _SLOT_AND_SCORE_BYTES) / (constant("memory_read_gb_s") * 1e9)


def _draft_s(
    shape: ModelShape, stack: Stack, parts: Mapping[Part, int], one: float, streams: int, slow: float
) -> float:
    """The stages' dense weights and experts, half of the Markov tables' bytes (one of two is looked up by
    row), and the output head once more."""
    config = shape.config
    stages = config.num_nextn_predict_layers
    if not stages or not stack.block:
        return 0.0
    read = constant("memory_read_gb_s") * 1e9
    markov_rows = config.vocab_size * config.dspark_markov_rank * _ACTIVATION_BYTES
    dense = sum(parts[part] for part in _DRAFT_DENSE) + _wo_a(parts[Part.DRAFT_WO_A], stack) - markov_rows
    strangers = streams * (1 + stack.block) / 2
    touched = distinct_experts(
        config.dspark_n_routed_experts, int(constant("draft_experts_per_token")), strangers
    )
    head = parts[Part.VOCABULARY] / 2 * (0.5 if stack.fp8_draft_head else 1.0)
    return (dense * slow + head + stages * touched * one) / read
